"""The operations that differ between kinds of devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor


class ForwardTimer(Protocol):
    """Measures a forward pass without making the host wait for the device."""

    def start(self) -> None:
        """Marks the beginning of the pass."""
        ...

    def stop(self) -> None:
        """Marks the end of the pass."""
        ...

    def seconds(self) -> float:
        """Returns the time from `start` to `stop`; waits until the device has reached `stop`."""
        ...


class CapturedStep(Protocol):
    """A computation that a device has recorded."""

    def replay(self) -> Tensor:
        """Repeats the computation on the same memory, and returns its output tensor."""
        ...


@dataclass(frozen=True, slots=True)
class QueryTiles:
    """Queries that attend to the KV pool, in tiles: consecutive queries of one sequence.

    All tensors are int64. A tile of no queries is padding.

    Attributes:
        size: The most queries of a tile.
        first_tokens: For each tile, the index of its first query.
        num_queries: For each tile, the number of its queries.
        table_starts: For each tile, the place in `block_tables` where its sequence's table begins.
        positions: ``[T]``, each query's index in its sequence. It sees the keys up to its own.
        block_tables: The tables of all sequences, one after another.
    """

    size: int
    first_tokens: Tensor
    num_queries: Tensor
    table_starts: Tensor
    positions: Tensor
    block_tables: Tensor


class PagedKernel(Protocol):
    """Attention to keys and values of the pool."""

    def __call__(self, q: Tensor, pool: Tensor, tiles: QueryTiles, window: int | None) -> Tensor:
        """Computes the attention of a layer.

        Args:
            q: Queries, ``[T, heads, head_dim]``.
            pool: The layer's pool, ``[blocks, block_size, kv_heads, 2 * head_dim]``: each key with
                its value beside it.
            tiles: The queries, by sequence.
            window: How many tokens back a query sees, its own token included; None for all.

        Returns:
            ``[T, heads, head_dim]``, contiguous; undefined for queries that are in no tile.
        """
        ...


class PromptKernel(Protocol):
    """Causal attention of several whole prompts, one after another, to their own tokens."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int, window: int | None
    ) -> Tensor:
        """Computes the attention of a layer.

        Args:
            q: Queries, ``[T, heads, head_dim]``.
            k: Keys, ``[T, kv_heads, head_dim]``.
            v: Values, likewise.
            starts: ``[prompts + 1]`` int32, the index of each prompt's first token, then ``T``.
            longest: The length of the longest prompt.
            window: How many tokens back a query sees, its own token included; None for all.

        Returns:
            ``[T, heads, head_dim]``.
        """
        ...


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """The attention kernels of a device; `prompts` is None if `paged` has to do its work."""

    paged: PagedKernel
    prompts: PromptKernel | None


class Platform(ABC):
    """A kind of device. Instances hold no state.

    Attributes:
        distributed_backend: The torch.distributed backend between devices of this kind.
        kv_pool_bytes: The size of the KV pool if none is configured; None where the free memory
            of the device decides.
        captures_graphs: Whether `capture` is supported.
    """

    distributed_backend: ClassVar[str]
    kv_pool_bytes: ClassVar[int | None]
    captures_graphs: ClassVar[bool]

    @abstractmethod
    def device_count(self) -> int:
        """Returns the number of devices of this kind."""

    @abstractmethod
    def check_device(self, name: str) -> None:
        """Raises ValueError unless there is a device of this name."""

    @abstractmethod
    def check_num_stages(self, num_stages: int) -> None:
        """Raises ValueError unless there are devices for so many pipeline stages."""

    @abstractmethod
    def default_dtype(self, checkpoint_dtype: str) -> str:
        """Returns the dtype to run in if none is configured."""

    @abstractmethod
    def stage_device(self, rank: int) -> torch.device:
        """Returns the device of the pipeline stage `rank`."""

    @abstractmethod
    def activate(self, device: torch.device) -> None:
        """Prepares this process for running on `device`."""

    @abstractmethod
    def attention_kernels(self, dtype: torch.dtype, head_dim: int) -> AttentionKernels | None:
        """Returns the kernels for attention; None to compute it by torch's operators."""

    @abstractmethod
    def to_device(
        self, values: Sequence[float], device: torch.device, dtype: torch.dtype
    ) -> Tensor:
        """Returns a tensor of at least one value on `device`, without waiting for the copy."""

    @abstractmethod
    def copy_to_device(self, values: Sequence[int], destination: Tensor) -> None:
        """Copies `values` to an int64 tensor of the same length, without waiting for the copy."""

    @abstractmethod
    def to_host(self, tensors: Sequence[Tensor]) -> list[list[Any]]:
        """Returns the values of `tensors`, all on one device; waits for the device once."""

    @abstractmethod
    def host_zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Returns zeros in host memory from which this kind of device copies without waiting."""

    @abstractmethod
    def make_timer(self, device: torch.device) -> ForwardTimer:
        """Returns a timer for forward passes on `device`."""

    @abstractmethod
    def new_graph_memory(self) -> Any:
        """Returns a handle of memory that captured steps share; None if none can be captured."""

    @abstractmethod
    def capture(
        self, step: Callable[[], Tensor], device: torch.device, memory: Any
    ) -> CapturedStep:
        """Records a computation for replay.

        Args:
            step: The computation; it reads and writes the same memory on each replay.
            memory: What `new_graph_memory` returned.

        Raises:
            RuntimeError: The computation cannot be captured.
        """

    @abstractmethod
    def free_bytes(self, device: torch.device) -> int:
        """Returns the bytes that are free on `device`, after torch's caches are released."""

    @abstractmethod
    def peak_bytes(self, run: Callable[[], None], device: torch.device) -> int:
        """Returns the most bytes that `run` allocates at any one time."""


def host_tensor(values: Sequence[float], dtype: torch.dtype) -> Tensor:
    """Returns a tensor of `values` in host memory."""
    if dtype is torch.int64:
        # Right after a forward pass, `torch.tensor` takes three times as long.
        return torch.frombuffer(array("q", values), dtype=dtype)
    return torch.tensor(values, dtype=dtype)
