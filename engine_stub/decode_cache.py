"""Keys and values of the sequences in decode, side by side, so that not every step gathers them.

As long as the same sequences decode step after step, all that changes in what they attend to is one
more token each. So in the second such step their keys and values are copied out of the pool, and
from then on the step's own are written to both. Sequences end in the same column: a step takes one
column for all of them, and what a shorter one lacks is on the left. The pool remains the truth:
whenever anything else happens, the copy is dropped and the step reads block tables.

This is for a CPU, where a gather costs as much as attention itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine_stub.attention import DecodeContext, PagedKVCache, Segment
from engine_stub.row import Row

# Columns that are left free for tokens to come; then everything is copied anew.
_ROOM = 64
# A call of attention costs about as much as reading this many tokens more.
_TOKENS_PER_CALL = 400


@dataclass(slots=True)
class _Part:
    """Sequences of about the same length.

    Attributes:
        num_seqs: How many.
        content: ``[layers, num_seqs, kv_heads, columns, 2 * head_dim]``.
        mask: ``[num_seqs, 1, 1, columns]``, minus infinity left of a sequence; None if all are
            of one length.
        column: That of the newest token.
    """

    num_seqs: int
    content: Tensor
    mask: Tensor | None
    column: int

    def has_room(self) -> bool:
        """Whether there is a column for one more token."""
        return self.column + 1 < self.content.shape[3]

    def context(self, windows: tuple[int | None, ...]) -> DecodeContext:
        """What attention needs in the layers, with their windows."""
        end = self.column + 1
        starts = [0 if window is None else max(end - window, 0) for window in windows]
        views: dict[int, tuple[tuple[Tensor, ...], tuple[Tensor, ...], Tensor | None]] = {}
        for start in set(starts):
            keys, values = self.content[:, :, :, start:end].chunk(2, dim=-1)
            mask = None if self.mask is None else self.mask[..., start:end]
            views[start] = keys.unbind(0), values.unbind(0), mask
        return DecodeContext(
            newest=list(self.content[:, :, :, self.column].unbind(0)),
            keys=[views[start][0][layer] for layer, start in enumerate(starts)],
            values=[views[start][1][layer] for layer, start in enumerate(starts)],
            masks=[views[start][2] for start in starts],
        )


class DecodeCache:
    """A copy of what the sequences in decode have in the pool; never larger than the pool.

    Args:
        cache: The pool.
    """

    def __init__(self, cache: PagedKVCache) -> None:
        self._cache = cache
        self._expected: dict[int, int] = {}
        """By sequence id, where each goes on if the next step decodes the same ones."""
        self._order: dict[int, int] = {}
        """By sequence id, its place in `_parts`."""
        self._parts: list[_Part] = []
        self._memory = cache.pool.new_empty(0)

    def arrange(self, decodes: list[Row]) -> list[Row] | None:
        """Get ready for a step.

        Returns:
            `decodes` in the order of `segments`; None if the step has to read block tables.
        """
        is_next = bool(decodes) and self._expected == {row.seq_id: row.start for row in decodes}
        self._expected = {row.seq_id: row.end for row in decodes}
        if is_next and self._parts and all(part.has_room() for part in self._parts):
            for part in self._parts:
                part.column += 1
        else:
            self._parts = []
            if is_next:
                self._copy(sorted(decodes, key=lambda row: row.end))
        if not self._parts:
            return None
        return sorted(decodes, key=lambda row: self._order[row.seq_id])

    def advance(self) -> bool:
        """Get ready for a step that takes just the sequences of the last one a token further.

        Returns:
            Whether there is room for it; if not, the step has to be arranged.
        """
        if not self._parts or not all(part.has_room() for part in self._parts):
            return False
        for part in self._parts:
            part.column += 1
        self._expected = {seq_id: end + 1 for seq_id, end in self._expected.items()}
        return True

    def segments(self, start: int) -> list[Segment]:
        """How to compute the rows that `arrange` returned, from token `start` of the step on."""
        segments = []
        for part in self._parts:
            end = start + part.num_seqs
            segments.append(Segment(start, end, part.num_seqs, part.context(self._cache.windows)))
            start = end
        return segments

    def _copy(self, rows: list[Row]) -> None:
        """Copy from the pool what rows, in order of length, have there."""
        parts: list[list[Row]] = [[]]
        for row in rows:
            padded = len(parts[-1]) * (row.end - parts[-1][-1].end) if parts[-1] else 0
            if padded > _TOKENS_PER_CALL:
                parts.append([])
            parts[-1].append(row)
        layers, _, num_heads, _, width = self._cache.pool.shape
        shapes = [(layers, len(p), num_heads, p[-1].end + _ROOM, width) for p in parts]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        if sum(sizes) > self._cache.pool.numel():
            return
        if sum(sizes) > self._memory.numel():
            self._memory = self._cache.pool.new_empty(sum(sizes))
        self._order = {row.seq_id: place for place, row in enumerate(rows)}
        for part, shape, content in zip(
            parts, shapes, torch.split(self._memory[: sum(sizes)], sizes), strict=True
        ):
            self._parts.append(self._copy_part(part, content.view(shape)))

    def _copy_part(self, rows: list[Row], content: Tensor) -> _Part:
        cache = self._cache
        longest = rows[-1].end
        columns = torch.arange(content.shape[3])
        missing = torch.tensor([longest - row.end for row in rows])[:, None]
        # Columns without a token hold those of others, and are never seen.
        tokens = (columns - missing).clamp(0, longest - 1)
        num_blocks = len(rows[-1].block_table)
        tables = torch.tensor(
            [row.block_table + [0] * (num_blocks - len(row.block_table)) for row in rows]
        )
        blocks = tables.gather(1, tokens // cache.block_size)
        slots = cache.slots(blocks.flatten(), (tokens % cache.block_size).flatten())
        slots = slots.view(*tokens.shape, -1).transpose(1, 2).flatten()
        for layer, out in zip(cache.slot_rows, content, strict=True):
            torch.index_select(layer, 0, slots, out=out.view(-1, out.shape[-1]))
        mask = None
        if rows[0].end != longest:
            mask = content.new_zeros(tokens.shape).masked_fill_(columns < missing, -torch.inf)
            mask = mask[:, None, None]
        return _Part(len(rows), content, mask, longest - 1)
