"""Attention over a paged KV cache: writes the step's keys and values, then reads block tables.

The pool's layout is ``[layers, blocks, block_size, kv_heads, 2 * head_dim]``: a slot holds the keys
of all heads, each with its value beside it. All index tensors are made once per step.

`KernelAttention` is for devices with kernels that read blocks where they are. Elsewhere,
`PagedAttention` gathers the blocks of a table by plain copies, as a block is one row, and calls
torch's attention. The step's tokens lie one after another in *segments* of sequences with equally
many queries, each of which is one call. A mask hides the padding within a segment and, in layers
with a sliding window, the tokens before it; blocks before the window are still read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as cache_results
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine_stub.platforms import platform_of, to_device
from engine_stub.platforms.interface import QueryTiles

# Blocks on their way to or from the host are copied to a buffer, at most this many at a time.
_SWAPPED_AT_ONCE = 64
# The most rows of a tile: each query has one for each query head that shares a key head.
_MOST_TILE_ROWS = 64


@dataclass(frozen=True, slots=True)
class AttentionContext:
    """Keys and values of the pool that a segment attends to.

    Attributes:
        blocks: ``[num_seqs * blocks]``, the numbers of the blocks to read.
        gathered: ``[num_seqs * blocks, block_size * kv_heads * 2 * head_dim]``, the memory that a
            layer copies the blocks to; shared by all segments and layers, one after another.
        keys: ``[num_seqs, kv_heads, blocks * block_size, head_dim]``, a view of `gathered`.
        values: Likewise.
        masks: For each window of a layer, ``[num_seqs, 1, queries, blocks * block_size]`` in the
            model's dtype: 0 where a query sees a key and minus infinity elsewhere.
    """

    blocks: Tensor
    gathered: Tensor
    keys: Tensor
    values: Tensor
    masks: dict[int | None, Tensor]


@dataclass(frozen=True, slots=True)
class AttentionSegment:
    """Consecutive tokens of sequences whose attention is computed in one call.

    Attributes:
        start: Index of the first token in the step.
        end: Index after the last token.
        num_seqs: The number of sequences; each has ``(end - start) / num_seqs`` tokens.
        context: The keys and values in the pool; None if the tokens see only each other.
    """

    start: int
    end: int
    num_seqs: int
    context: AttentionContext | None


class PagedKVCache:
    """The pool of keys and values of all layers.

    Attributes:
        pool: ``[layers, num_blocks + 1, block_size, kv_heads, 2 * head_dim]``.
        scratch_block: The last block, which belongs to no table: padding rows write to it.
        host_pool: ``[num_cpu_blocks, layers, block_size, kv_heads, 2 * head_dim]`` in host memory,
            pinned if the device needs that.
        block_rows: For each layer a view of the pool, a row per block:
            ``[num_blocks + 1, block_size * kv_heads * 2 * head_dim]``.
        slot_rows: For each layer a view of the pool, a row per slot:
            ``[(num_blocks + 1) * block_size, kv_heads, 2 * head_dim]``.
        windows: For each layer, how many tokens back a query sees, its own token included; None
            for all.
        kernels: The attention kernels; None to gather blocks.
        tile_size: The most queries of a tile for `kernels`.
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
        self.tile_size = max(_MOST_TILE_ROWS // heads_per_kv, 1)
        self.num_kv_heads = num_kv_heads
        self.block_size = block_size
        self.head_dim = head_dim
        self.scratch_block = num_blocks
        shape = (num_layers, num_blocks + 1, block_size, num_kv_heads, 2 * head_dim)
        self.pool = torch.zeros(shape, device=device, dtype=dtype)
        host_shape = (num_cpu_blocks, num_layers, *shape[2:])
        self.host_pool = platform_of(device).host_zeros(host_shape, dtype)
        self.block_rows = list(self.pool.flatten(2).unbind(0))
        self.slot_rows = list(self.pool.flatten(1, 2).unbind(0))
        self._workspace = self.pool.new_empty(0)

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

    def contexts(
        self, block_tables: list[list[int]], positions: Tensor, sizes: list[int]
    ) -> list[AttentionContext]:
        """Returns the contexts of consecutive segments.

        Args:
            block_tables: The tables of all sequences, in order of length.
            positions: ``[tables, queries]`` on the pool's device, each query's index in its
                sequence. A query sees the keys up to its own.
            sizes: The number of sequences of each segment.
        """
        width = len(block_tables[-1])
        padded = [table + [0] * (width - len(table)) for table in block_tables]
        tables = to_device([*chain(*padded)], self.pool.device).view(-1, width)
        masks = self._masks(positions, width)
        contexts = []
        end = 0
        for size in sizes:
            start, end = end, end + size
            blocks = tables[start:end, : len(block_tables[end - 1])]
            num_keys = blocks.shape[1] * self.block_size
            own_masks = {window: mask[start:end, ..., :num_keys] for window, mask in masks.items()}
            contexts.append(self._context(blocks, own_masks))
        return contexts

    def _masks(self, positions: Tensor, num_blocks: int) -> dict[int | None, Tensor]:
        """Returns the mask of each window, for queries at ``positions [tables, queries]``."""
        keys = torch.arange(num_blocks * self.block_size, device=self.pool.device)
        queries = positions[:, None, :, None]
        windows = dict.fromkeys(self.windows)
        return {window: self._mask(queries, keys, window) for window in windows}

    def _mask(self, positions: Tensor, keys: Tensor, window: int | None) -> Tensor:
        """Returns 0 where a query at one of `positions` sees a key, else minus infinity."""
        unseen = keys > positions
        if window is not None:
            unseen |= keys <= positions - window
        mask = torch.zeros(unseen.shape, dtype=self.pool.dtype, device=self.pool.device)
        return mask.masked_fill_(unseen, -torch.inf)

    def prompt_mask(self, length: int, window: int) -> Tensor:
        """Returns the mask of a prompt in a layer with a window: ``[1, 1, length, length]``."""
        positions = torch.arange(length, device=self.pool.device)
        return self._mask(positions[None, None, :, None], positions, window)

    def _context(self, blocks: Tensor, masks: dict[int | None, Tensor]) -> AttentionContext:
        """Returns the context of a segment that reads ``blocks [num_seqs, blocks]``."""
        num_blocks = blocks.numel()
        # All segments and steps share this memory.
        if len(self._workspace) < num_blocks:
            self._workspace = self.block_rows[0].new_empty(num_blocks, self.block_rows[0].shape[1])
        gathered = self._workspace[:num_blocks]
        heads = gathered.view(len(blocks), -1, self.num_kv_heads, 2 * self.head_dim).transpose(1, 2)
        keys, values = heads.chunk(2, dim=-1)
        return AttentionContext(blocks.flatten(), gathered, keys, values, masks)


@dataclass(frozen=True, slots=True)
class PackedPrompts:
    """Whole prompts at the beginning of a step, which see only themselves.

    Attributes:
        num_tokens: The sum of their lengths.
        starts: ``[prompts + 1]`` int32, the index of each one's first token, then `num_tokens`.
        longest: The length of the longest.
    """

    num_tokens: int
    starts: Tensor
    longest: int


class KernelAttention:
    """The attention of one step by the kernels of a device; see `PagedAttention`.

    Args:
        cache: The pool, with kernels; the step's keys and values are written to it.
        slots: ``[T]``, the row of `PagedKVCache.slot_rows` for each token's keys and values.
        prompts: The first tokens of the step, for the kernel for prompts; None if there are none.
        tiles: All further tokens, counted from the first of them; None if there are none.
    """

    def __init__(
        self,
        cache: PagedKVCache,
        slots: Tensor,
        prompts: PackedPrompts | None,
        tiles: QueryTiles | None,
    ) -> None:
        self.cache = cache
        self.slots = slots
        self.prompts = prompts
        self.tiles = tiles

    def __call__(self, layer_idx: int, q: Tensor, kv: Tensor) -> Tensor:
        """Writes the step's keys and values, then attends; see `PagedAttention.__call__`."""
        cache, kernels, window = self.cache, self.cache.kernels, self.cache.windows[layer_idx]
        assert kernels is not None
        cache.slot_rows[layer_idx].index_copy_(0, self.slots, kv)
        outputs = []
        num_tokens = 0
        if self.prompts is not None:
            assert kernels.prompts is not None
            num_tokens = self.prompts.num_tokens
            k, v = kv[:num_tokens].chunk(2, dim=-1)
            starts, longest = self.prompts.starts, self.prompts.longest
            outputs.append(kernels.prompts(q[:num_tokens], k, v, starts, longest, window))
        if self.tiles is not None:
            outputs.append(kernels.paged(q[num_tokens:], cache.pool[layer_idx], self.tiles, window))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


class PagedAttention:
    """The attention of one step by torch's operators, which the decoder calls once per layer.

    Args:
        cache: The pool; the step's keys and values are written to it.
        slots: ``[T]``, the row of `PagedKVCache.slot_rows` for each token's keys and values.
        segments: The step's tokens, all of them and in order.
    """

    def __init__(
        self, cache: PagedKVCache, slots: Tensor, segments: list[AttentionSegment]
    ) -> None:
        self.cache = cache
        self.slots = slots
        self.segments = segments
        # Results that all layers of the step share.
        self._prompt_mask = cache_results(cache.prompt_mask)
        self._repeated = cache_results(_repeated)

    def __call__(self, layer_idx: int, q: Tensor, kv: Tensor) -> Tensor:
        """Writes the step's keys and values, then attends.

        Args:
            layer_idx: The layer's position in the cache.
            q: Queries, ``[T, heads, head_dim]``.
            kv: Keys and values, ``[T, kv_heads, 2 * head_dim]``.

        Returns:
            ``[T, heads, head_dim]``.
        """
        self.cache.slot_rows[layer_idx].index_copy_(0, self.slots, kv)
        if len(self.segments) == 1:
            return self._attend(self.segments[0], layer_idx, q, kv)
        outputs = []
        for segment in self.segments:
            tokens = slice(segment.start, segment.end)
            outputs.append(self._attend(segment, layer_idx, q[tokens], kv[tokens]))
        return torch.cat(outputs)

    def _attend(self, segment: AttentionSegment, layer_idx: int, q: Tensor, kv: Tensor) -> Tensor:
        context = segment.context
        q = _by_sequence(q, segment.num_seqs)
        if context is None:
            out = self._attend_within(layer_idx, q, _by_sequence(kv, segment.num_seqs))
        else:
            out = self._attend_to(context, layer_idx, q)
        return out.transpose(1, 2).flatten(0, 1)

    def _attend_within(self, layer_idx: int, q: Tensor, kv: Tensor) -> Tensor:
        """Computes causal attention of sequences that begin with this step."""
        k, v = kv.chunk(2, dim=-1)
        window, length = self.cache.windows[layer_idx], q.shape[2]
        if window is None or length <= window:
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self._attend_masked(q, k, v, self._prompt_mask(length, window))

    def _attend_to(self, context: AttentionContext, layer_idx: int, q: Tensor) -> Tensor:
        """Computes attention to keys and values of the pool, the step's own included."""
        pool = self.cache.block_rows[layer_idx]
        torch.index_select(pool, 0, context.blocks, out=context.gathered)
        mask = context.masks[self.cache.windows[layer_idx]]
        return self._attend_masked(q, context.keys, context.values, mask)

    def _attend_masked(self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Computes attention under ``mask [sequences or 1, 1, queries, tokens]``.

        The query heads that share a key head become that head's queries, so that no key is copied.
        """
        grouped = q.reshape(len(q), keys.shape[1], -1, q.shape[-1])
        if mask.shape[2] > 1:
            mask = self._repeated(mask, q.shape[1] // keys.shape[1])
        out = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
        return out.reshape(q.shape)


def _by_sequence(x: Tensor, num_seqs: int) -> Tensor:
    """Returns ``x [T, heads, size]`` as ``[num_seqs, heads, T / num_seqs, size]``."""
    return x.view(num_seqs, -1, *x.shape[1:]).transpose(1, 2)


def _repeated(mask: Tensor, times: int) -> Tensor:
    """Returns a mask for the queries of several heads, one head after another."""
    return mask.repeat(1, 1, times, 1)
