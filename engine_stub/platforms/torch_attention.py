"""Attention kernels by torch's operators: gathers the blocks of each table, by plain copies.

Neighbouring tiles with equally many queries are a *segment*, one call of torch's attention. A mask
hides the padding within a segment and, in layers with a sliding window, the tokens before it;
blocks before the window are still read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engine_stub.platforms.interface import AttentionKernels, QueryTiles

# In a segment, the longest table has at most this times the blocks of the shortest.
_MOST_PADDING = 2
# The most bytes of keys and values that a segment gathers. They should still be in the
# processor's cache when they are read.
_GATHERED_BYTES = 2**21


@dataclass(slots=True)
class _Segment:
    """Consecutive tiles with equally many queries, whose attention is computed in one call.

    Attributes:
        start: Index of the first query.
        end: Index after the last query.
        blocks: ``[tiles * blocks]``, the numbers of the blocks to read.
        positions: ``[tiles, 1, queries, 1]``, each query's index in its sequence.
        gathered: ``[tiles * blocks, block_size, kv_heads, 2 * head_dim]``, the memory to copy the
            blocks to.
        keys: ``[tiles, kv_heads, blocks * block_size, head_dim]``, a view of `gathered`.
        values: Likewise.
        masks: For each window of a layer, ``[tiles, 1, queries of a key head, keys]``: 0 where a
            query sees a key and minus infinity elsewhere.
    """

    start: int
    end: int
    blocks: Tensor
    positions: Tensor
    gathered: Tensor
    keys: Tensor
    values: Tensor
    masks: dict[int | None, Tensor] = field(default_factory=dict)


class TorchAttention:
    """The kernels for one pool. What the layers of a step share is computed for the first one."""

    def __init__(self) -> None:
        self._workspace = torch.empty(0)
        self._tiles: QueryTiles | None = None
        self._segments: list[_Segment] = []
        self._starts: Tensor | None = None
        self._lengths: list[tuple[int, int]] = []
        self._prompt_masks: dict[tuple[int, int], Tensor] = {}

    @property
    def kernels(self) -> AttentionKernels:
        """The kernels as functions."""
        return AttentionKernels(self.paged, self.prompts, has_whole_tiles=True)

    def paged(self, q: Tensor, pool: Tensor, tiles: QueryTiles, window: int | None) -> Tensor:
        """See `AttentionKernels.paged`."""
        if tiles is not self._tiles:
            self._tiles = tiles
            self._segments = self._make_segments(pool, tiles)
        outputs = []
        for segment in self._segments:
            torch.index_select(pool, 0, segment.blocks, out=segment.gathered)
            mask = segment.masks.get(window)
            if mask is None:
                mask = _mask(segment.positions, segment.keys.shape[2], window, pool.dtype)
                if mask.shape[2] > 1:
                    mask = mask.repeat(1, 1, q.shape[1] // pool.shape[2], 1)
                segment.masks[window] = mask
            own = q if len(self._segments) == 1 else q[segment.start : segment.end]
            outputs.append(_attend(own, segment.keys, segment.values, mask))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def prompts(
        self, q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int, window: int | None
    ) -> Tensor:
        """See `AttentionKernels.prompts`."""
        del longest
        if starts is not self._starts:
            self._starts = starts
            lengths = [end - start for start, end in pairwise(starts.tolist())]
            self._lengths = [(length, len([*same])) for length, same in groupby(lengths)]
            self._prompt_masks = {}
        outputs = []
        start = 0
        for length, num_seqs in self._lengths:
            own = slice(start, start + length * num_seqs)
            start = own.stop
            keys, values = _by_sequence(k[own], num_seqs), _by_sequence(v[own], num_seqs)
            if window is None or length <= window:
                queries = _by_sequence(q[own], num_seqs)
                out = scaled_dot_product_attention(
                    queries, keys, values, is_causal=True, enable_gqa=True
                )
                outputs.append(out.transpose(1, 2).flatten(0, 1))
            else:
                mask = self._prompt_masks.get((length, window))
                if mask is None:
                    positions = torch.arange(length, device=q.device)[None, None, :, None]
                    mask = _mask(positions, length, window, q.dtype)
                    mask = mask.repeat(1, 1, q.shape[1] // k.shape[1], 1)
                    self._prompt_masks[length, window] = mask
                outputs.append(_attend(q[own], keys, values, mask))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _make_segments(self, pool: Tensor, tiles: QueryTiles) -> list[_Segment]:
        block_size, bytes_per_block = pool.shape[1], pool[0].nbytes
        positions = tiles.positions.tolist()
        firsts, counts = tiles.first_tokens.tolist(), tiles.num_queries.tolist()
        lengths = [
            positions[first + count - 1] // block_size + 1
            for first, count in zip(firsts, counts, strict=True)
        ]
        segments = []
        for start, end in _runs(counts, lengths, _GATHERED_BYTES // bytes_per_block):
            columns = torch.arange(max(lengths[start:end]), device=pool.device)
            # Shorter tables are padded with what follows them.
            at = tiles.table_starts[start:end, None] + columns
            blocks = tiles.block_tables.take(at).flatten()
            if len(self._workspace) < len(blocks):
                self._workspace = pool.new_empty(len(blocks), *pool.shape[1:])
            gathered = self._workspace[: len(blocks)]
            heads = gathered.view(end - start, -1, *pool.shape[2:]).transpose(1, 2)
            keys, values = heads.chunk(2, dim=-1)
            first, last = firsts[start], firsts[end - 1] + counts[end - 1]
            segments.append(
                _Segment(
                    start=first,
                    end=last,
                    blocks=blocks,
                    positions=tiles.positions[first:last].view(end - start, 1, -1, 1),
                    gathered=gathered,
                    keys=keys,
                    values=values,
                )
            )
        return segments


def _runs(counts: list[int], lengths: list[int], most_blocks: int) -> Iterator[tuple[int, int]]:
    """Yields the first tile of each segment, and the one after its last.

    Args:
        counts: For each tile, the number of its queries.
        lengths: For each tile, the number of blocks to read.
        most_blocks: The most blocks of a segment.
    """
    start = shortest = longest = 0
    for index, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        least, most = min(shortest, length), max(longest, length)
        if index > start and (
            count != counts[start]
            or (index + 1 - start) * most > most_blocks
            or most > _MOST_PADDING * least
        ):
            yield start, index
            start, shortest, longest = index, length, length
        elif index == start:
            shortest = longest = length
        else:
            shortest, longest = least, most
    if lengths:
        yield start, len(lengths)


def _mask(positions: Tensor, num_keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """Returns 0 where a query at one of `positions` sees a key, else minus infinity."""
    keys = torch.arange(num_keys, device=positions.device)
    unseen = keys > positions
    if window is not None:
        unseen |= keys <= positions - window
    return torch.zeros(unseen.shape, dtype=dtype, device=keys.device).masked_fill_(
        unseen, -torch.inf
    )


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Computes attention of ``q [T, heads, head_dim]`` under a mask.

    The query heads that share a key head become that head's queries, so that no key is copied.
    """
    queries = _by_sequence(q, len(keys))
    grouped = queries.reshape(len(keys), keys.shape[1], -1, q.shape[-1])
    out = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return out.reshape(queries.shape).transpose(1, 2).flatten(0, 1)


def _by_sequence(x: Tensor, num_seqs: int) -> Tensor:
    """Returns ``x [T, heads, size]`` as ``[num_seqs, heads, T / num_seqs, size]``."""
    return x.view(num_seqs, -1, *x.shape[1:]).transpose(1, 2)
