"""The paged KV cache: a pool of keys and values in blocks, and the copies between blocks.

The pool's layout is ``[layers, blocks, block_size, kv_heads, 2 * head_dim]``: a slot holds the keys
of all heads, each with its value beside it.
"""

from __future__ import annotations

import sys

import torch

from engine_stub.platforms import host_zeros, platform_of, to_device

# Blocks on their way to or from the host are copied to a buffer, at most this many at a time.
_SWAPPED_AT_ONCE = 64
# The most rows of a tile, where tiles are not whole: each query has one for each query head that
# shares a key head.
_MOST_TILE_ROWS = 64


class PagedKVCache:
    """The pool of keys and values of all layers.

    Attributes:
        pool: ``[layers, num_blocks + 1, block_size, kv_heads, 2 * head_dim]``.
        scratch_block: The last block, which belongs to no table: padding rows write to it.
        host_pool: ``[num_cpu_blocks, layers, block_size, kv_heads, 2 * head_dim]`` in host memory,
            pinned if the device needs that.
        slot_rows: For each layer a view of the pool, a row per slot:
            ``[(num_blocks + 1) * block_size, kv_heads, 2 * head_dim]``.
        windows: For each layer, how many tokens back a query sees, its own token included; None
            for all.
        kernels: The attention kernels.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        windows: tuple[int | None, ...] = (),
        num_cpu_blocks: int = 0,
        heads_per_kv: int = 1,
    ) -> None:
        self.windows = windows or (None,) * num_layers
        self.kernels = platform_of(device).attention_kernels(dtype, head_dim)
        self._tile_size = max(_MOST_TILE_ROWS // heads_per_kv, 1)
        self.block_size = block_size
        self.scratch_block = num_blocks
        shape = (num_layers, num_blocks + 1, block_size, num_kv_heads, 2 * head_dim)
        self.pool = torch.zeros(shape, device=device, dtype=dtype)
        host_shape = (num_cpu_blocks, num_layers, *shape[2:])
        self.host_pool = host_zeros(host_shape, dtype, device)
        self.slot_rows = list(self.pool.flatten(1, 2).unbind(0))

    @property
    def tile_size(self) -> int:
        """The most queries of a tile for `kernels`."""
        return sys.maxsize if self.kernels.has_whole_tiles else self._tile_size

    @staticmethod
    def bytes_per_block(
        num_layers: int, num_kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Returns the bytes of one block over all layers."""
        return 2 * num_layers * num_kv_heads * block_size * head_dim * dtype.itemsize

    def swap_out(self, pairs: list[tuple[int, int]]) -> None:
        """Copies blocks to host memory, by ``(device block, host block)``.

        The host does not wait: between pinned memory and a GPU, contiguous copies are asynchronous.
        Only such copies touch the host's pool, all on one stream, so that they stay in order.
        """
        for start in range(0, len(pairs), _SWAPPED_AT_ONCE):
            chunk = pairs[start : start + _SWAPPED_AT_ONCE]
            sources, destinations = zip(*chunk, strict=True)
            content = self.pool.index_select(1, to_device(sources, self.pool.device))
            for row, block in zip(content.transpose(0, 1).contiguous(), destinations, strict=True):
                self.host_pool[block].copy_(row, non_blocking=True)

    def swap_in(self, pairs: list[tuple[int, int]]) -> None:
        """Copies blocks back from host memory, by ``(host block, device block)``."""
        for start in range(0, len(pairs), _SWAPPED_AT_ONCE):
            chunk = pairs[start : start + _SWAPPED_AT_ONCE]
            sources, destinations = zip(*chunk, strict=True)
            content = self.pool.new_empty(len(chunk), *self.host_pool.shape[1:])
            for row, block in zip(content, sources, strict=True):
                row.copy_(self.host_pool[block], non_blocking=True)
            blocks = to_device(destinations, self.pool.device)
            self.pool.index_copy_(1, blocks, content.transpose(0, 1))

    def copy_blocks(self, pairs: list[tuple[int, int]]) -> None:
        """Copies blocks on the device, by ``(source, destination)``; no source is a destination."""
        if pairs:
            sources, destinations = zip(*pairs, strict=True)
            content = self.pool.index_select(1, to_device(sources, self.pool.device))
            self.pool.index_copy_(1, to_device(destinations, self.pool.device), content)
