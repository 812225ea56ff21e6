"""The operations that differ between kinds of devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

Computation: TypeAlias = Callable[[], Tensor]
"""Reads and writes the same memory each time."""


@dataclass(frozen=True, slots=True)
class QueryTiles:
    """Queries that attend to the KV pool, in tiles: consecutive queries of one sequence.

    All tensors are int64. A tile of no queries is padding.

    Attributes:
        size: The most queries of a tile.
        first_tokens: For each tile, the index of its first query.
        num_queries: For each tile, the number of its queries.
        table_starts: For each tile, the index in `block_tables` where its sequence's table begins.
        positions: ``[T]``, each query's index in its sequence. It sees the keys up to its own.
        block_tables: Tables of the step's sequences and of others. What follows a table in its row
            are numbers of blocks of the pool, too.
    """

    size: int
    first_tokens: Tensor
    num_queries: Tensor
    table_starts: Tensor
    positions: Tensor
    block_tables: Tensor


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """The attention kernels of a device, each for one layer.

    Both get queries ``[T, heads, head_dim]`` first, and last how many tokens back a query sees, its
    own token included (None for all). They return ``[T, heads, head_dim]``.

    Attributes:
        paged: Attention to the layer's pool, ``[blocks, block_size, kv_heads, 2 * head_dim]``: each
            key with its value beside it. The result is contiguous, and undefined for queries that
            are in no tile.
        prompts: Causal attention of whole prompts, one after another, to their own keys and values,
            ``[T, kv_heads, head_dim]`` each. Also gets ``[prompts + 1]`` int32, the index of each
            prompt's first token, then ``T``; and the length of the longest. None if `paged` has to
            do its work.
        has_whole_tiles: Whether a tile has all queries of its sequence. Such kernels look at the
            contents of the tiles, so that steps with them cannot be captured.
    """

    paged: Callable[[Tensor, Tensor, QueryTiles, int | None], Tensor]
    prompts: Callable[[Tensor, Tensor, Tensor, Tensor, int, int | None], Tensor] | None
    has_whole_tiles: bool = False


Rotation: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and sines of a step's tokens, each ``[T, 1, head_dim]`` and contiguous.

Channels of the first half are paired with those of the second; the sines of the first half are
negated.
"""

QKNorm: TypeAlias = tuple[Tensor, Tensor, float]
"""The weights of the norms of queries and of keys, ``[head_dim]`` each, and their epsilon."""

KVSlots: TypeAlias = tuple[Tensor, Tensor]
"""A layer's pool, ``[slots, kv_heads, 2 * head_dim]``, and each token's slot, ``[T]`` int64."""


@dataclass(frozen=True, slots=True)
class LayerKernels:
    """The operations of a decoder layer beside matrix products and attention, for a device.

    Attributes:
        add_rms_norm: An addition and the root-mean-square norm of the sum, computed in float32.
            Gets both summands (the second None for no addition), ``[T, size]`` and contiguous, then
            the norm's weight and epsilon; returns the sum and its norm.
        silu_and_mul: SwiGLU's activation, ``silu(gate) * up``, of the contiguous ``[T, 2 * size]``
            that has each token's gate and then its up projection: ``[T, size]``.
        rotate_and_write: The way from a layer's projection to its attention. Gets the heads of
            queries, keys and values, ``[T, n_heads + 2 * n_kv_heads, head_dim]`` and contiguous;
            ``n_kv_heads``; the norm of queries and keys (None without one); the rotation, which
            comes after it; and the slots that keys and values are written to (None for none).
            Returns the queries, ``[T, n_heads, head_dim]``, and the keys, each with its value
            beside it, ``[T, n_kv_heads, 2 * head_dim]``.
    """

    add_rms_norm: Callable[[Tensor, Tensor | None, Tensor, float], tuple[Tensor, Tensor]]
    silu_and_mul: Callable[[Tensor], Tensor]
    rotate_and_write: Callable[
        [Tensor, int, QKNorm | None, Rotation, KVSlots | None], tuple[Tensor, Tensor]
    ]


class Platform(ABC):
    """A kind of device. Instances hold no state.

    Attributes:
        distributed_backend: The torch.distributed backend between devices of this kind.
        has_own_memory: Whether devices have memory that no other processes need, and copy from and
            to pinned memory of the host.
    """

    distributed_backend: ClassVar[str]
    has_own_memory: ClassVar[bool]

    @abstractmethod
    def device_count(self) -> int:
        """Returns the number of devices of this kind."""

    @abstractmethod
    def default_dtype(self, checkpoint_dtype: str) -> str:
        """Returns the dtype to run in if none is configured."""

    @abstractmethod
    def stage_device(self, rank: int) -> torch.device:
        """Returns the device of the pipeline stage `rank`; raises ValueError if there is none."""

    @abstractmethod
    def activate(self, device: torch.device) -> None:
        """Prepares this process for running on `device`."""

    @abstractmethod
    def attention_kernels(self, dtype: torch.dtype, head_dim: int) -> AttentionKernels:
        """Returns the kernels for the attention of one pool.

        Raises:
            ValueError: The kernels are not installed.
        """

    @abstractmethod
    def layer_kernels(self) -> LayerKernels:
        """Returns the kernels for the layers of a decoder.

        Raises:
            ValueError: The kernels are not installed.
        """

    @abstractmethod
    def synchronize(self, device: torch.device) -> None:
        """Waits until `device` has done what it was given."""

    @abstractmethod
    def mark(self) -> Any:
        """Returns a mark of the time at which the device gets here; does not wait for it."""

    @abstractmethod
    def seconds_between(self, start: Any, stop: Any) -> float:
        """Returns the time between two marks; waits until the device has reached `stop`."""

    @abstractmethod
    def graph_capture(self, device: torch.device) -> Callable[[Computation], Computation]:
        """Returns a function that makes a computation quick to repeat, if the device can do so.

        All computations that it is called with share the memory of their results.
        """

    @abstractmethod
    def kv_pool_bytes(
        self, device: torch.device, run_largest_steps: Callable[[], None], utilization: float
    ) -> int:
        """Returns the size of the KV pool if none is configured; may be negative.

        Args:
            device: The device, which has the weights already.
            run_largest_steps: Runs the steps that need the most memory beside the pool.
            utilization: The part of the device's memory that may be in use.
        """
