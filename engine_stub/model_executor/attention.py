"""Attention by torch's operators: gathers the blocks of each table, by plain copies.

A block is one row of the pool. The step's tokens lie one after another in *segments* of sequences
with equally many queries, each of which is one call of torch's attention. A mask hides the padding
within a segment and, in layers with a sliding window, the tokens before it; blocks before the
window are still read. Devices with kernels that read blocks where they are use `KernelAttention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as cache_results
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine_stub.model_executor.kv_cache import PagedKVCache
from engine_stub.platforms import to_device


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


def attention_contexts(
    cache: PagedKVCache, block_tables: list[list[int]], positions: Tensor, sizes: list[int]
) -> list[AttentionContext]:
    """Returns the contexts of consecutive segments.

    Args:
        block_tables: The tables of all sequences, in order of length.
        positions: ``[tables, queries]`` on the pool's device, each query's index in its sequence. A
            query sees the keys up to its own.
        sizes: The number of sequences of each segment.
    """
    device, width = cache.pool.device, len(block_tables[-1])
    padded = [table + [0] * (width - len(table)) for table in block_tables]
    tables = to_device([*chain(*padded)], device).view(-1, width)
    keys = torch.arange(width * cache.block_size, device=device)
    queries = positions[:, None, :, None]
    masks = {window: _mask(cache, queries, keys, window) for window in dict.fromkeys(cache.windows)}
    contexts = []
    end = 0
    for size in sizes:
        start, end = end, end + size
        blocks = tables[start:end, : len(block_tables[end - 1])]
        num_keys = blocks.shape[1] * cache.block_size
        own_masks = {window: mask[start:end, ..., :num_keys] for window, mask in masks.items()}
        contexts.append(_context(cache, blocks, own_masks))
    return contexts


def _context(
    cache: PagedKVCache, blocks: Tensor, masks: dict[int | None, Tensor]
) -> AttentionContext:
    """Returns the context of a segment that reads ``blocks [num_seqs, blocks]``."""
    num_blocks, rows = blocks.numel(), cache.block_rows[0]
    # All segments and steps share this memory.
    if len(cache.workspace) < num_blocks:
        cache.workspace = rows.new_empty(num_blocks, rows.shape[1])
    gathered = cache.workspace[:num_blocks]
    heads = gathered.view(len(blocks), -1, *cache.pool.shape[3:]).transpose(1, 2)
    keys, values = heads.chunk(2, dim=-1)
    return AttentionContext(blocks.flatten(), gathered, keys, values, masks)


def _mask(cache: PagedKVCache, positions: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """Returns 0 where a query at one of `positions` sees a key, else minus infinity."""
    unseen = keys > positions
    if window is not None:
        unseen |= keys <= positions - window
    mask = torch.zeros(unseen.shape, dtype=cache.pool.dtype, device=cache.pool.device)
    return mask.masked_fill_(unseen, -torch.inf)


class PagedAttention:
    """The attention of one step, which the decoder calls once per layer.

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
        self._prompt_mask = cache_results(self._make_prompt_mask)
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

    def _make_prompt_mask(self, length: int, window: int) -> Tensor:
        """Returns the mask of a prompt in a layer with a window: ``[1, 1, length, length]``."""
        positions = torch.arange(length, device=self.cache.pool.device)
        return _mask(self.cache, positions[None, None, :, None], positions, window)

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
