"""Keys and values of the sequences in decode, side by side, so that no step has to gather them.

A sequence that begins to decode is copied out of the pool, and from then on the step's own keys and
values are written here, until a step goes without it. Sequences end in the same column: a step
takes one column for all of them, and what a shorter one lacks is on the left. Keys are transposed,
as the product with a query likes them. The pool remains the truth: it gets what it lacks before
anybody looks, and a copy may then be dropped, and made again.

This is for a CPU, where a gather costs as much as attention itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine_stub.model_executor.attention import AttentionSegment, DecodeContext, PagedKVCache
from engine_stub.worker.batch_row import BatchRow

# Columns that are left free for tokens to come; then everything is copied anew.
_ROOM = 128
# Rows of keys are multiples of this, so that each begins at a line of the processor's cache.
_ALIGNMENT = 16
# A call of attention costs about as much as reading this many tokens more.
_TOKENS_PER_CALL = 200


@dataclass(slots=True)
class _Part:
    """Sequences of about the same length, each in a place of its own.

    Attributes:
        keys: ``[layers, places, kv_heads, head_dim, columns]``.
        values: ``[layers, places, kv_heads, columns, head_dim]``.
        mask: ``[places, kv_heads, columns]``, minus infinity left of a sequence and 0 elsewhere.
        column: That of the newest token.
        seq_ids: Those in the first places, in order.
        starts: The column of each one's first token.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor
    column: int
    seq_ids: list[int]
    starts: list[int]

    def has_room(self) -> bool:
        """Whether there is a column for one more token."""
        return self.column + 1 < self.mask.shape[-1]

    def takes(self, length: int) -> bool:
        """Whether a sequence of `length` tokens fits in, and is not much shorter than others."""
        missing = self.column + 1 - length
        return 0 <= missing <= _TOKENS_PER_CALL and len(self.seq_ids) < len(self.mask)

    def add(self, row: BatchRow, pool: Tensor) -> None:
        """Copy what a sequence has in the pool to the next place."""
        place, start, end = len(self.seq_ids), self.column + 1 - row.end, self.column + 1
        blocks = torch.tensor(row.block_table)
        # [layers, tokens, kv_heads, 2 * head_dim]
        content = pool.index_select(1, blocks).flatten(1, 2)[:, : row.end]
        keys, values = content.chunk(2, dim=-1)
        self.keys[:, place, ..., start:end].copy_(keys.permute(0, 2, 3, 1))
        self.values[:, place, :, start:end].copy_(values.transpose(1, 2))
        self.mask[place, :, start:] = 0
        # What is not seen counts for nothing, but must be numbers.
        self.mask[place, :, :start] = -torch.inf
        self.keys[:, place, ..., :start] = 0
        self.values[:, place, :, :start] = 0
        self.seq_ids.append(row.seq_id)
        self.starts.append(start)

    def keep(self, seq_ids: set[int]) -> None:
        """Drop all others; the last ones move to the places that become free."""
        for place in reversed(range(len(self.seq_ids))):
            if self.seq_ids[place] not in seq_ids:
                last_id, last_start = self.seq_ids.pop(), self.starts.pop()
                last = len(self.seq_ids)
                if place < last:
                    self.keys[:, place].copy_(self.keys[:, last])
                    self.values[:, place].copy_(self.values[:, last])
                    self.mask[place].copy_(self.mask[last])
                    self.seq_ids[place], self.starts[place] = last_id, last_start

    def newest(self, num_tokens: int) -> Tensor:
        """What all layers have of the sequences' last tokens, as the pool has it.

        Returns ``[layers, num_tokens, places, kv_heads, 2 * head_dim]``.
        """
        places, columns = len(self.seq_ids), slice(self.column + 1 - num_tokens, self.column + 1)
        keys = self.keys[:, :places, ..., columns].permute(0, 4, 1, 2, 3)
        values = self.values[:, :places, :, columns].permute(0, 3, 1, 2, 4)
        return torch.cat((keys, values), dim=-1)

    def context(self, windows: tuple[int | None, ...]) -> DecodeContext:
        """What attention needs in the layers, with their windows."""
        places, end = len(self.seq_ids), self.column + 1
        first, last = min(self.starts), max(self.starts)
        starts = [first if window is None else max(end - window, first) for window in windows]
        # Each sequence's heads are batches of their own.
        keys, values = (each[:, :places].flatten(1, 2) for each in (self.keys, self.values))
        mask = self.mask[:places].flatten(0, 1)[:, None]
        views = {
            start: (
                keys.narrow(-1, start, end - start).unbind(),
                values.narrow(-2, start, end - start).unbind(),
                mask.narrow(-1, start, end - start),
            )
            for start in set(starts)
        }
        return DecodeContext(
            new_keys=keys.narrow(-1, self.column, 1).transpose(-1, -2).unbind(),
            new_values=values.narrow(-2, self.column, 1).unbind(),
            keys=[views[start][0][layer] for layer, start in enumerate(starts)],
            values=[views[start][1][layer] for layer, start in enumerate(starts)],
            masks=[views[start][2] for start in starts],
            are_needed=[start < last for start in starts],
        )


class DecodeCache:
    """A copy of what the sequences in decode have in the pool; never larger than the pool.

    Args:
        cache: The pool.
    """

    def __init__(self, cache: PagedKVCache) -> None:
        self._cache = cache
        self._expected: dict[int, int] = {}
        """By sequence id, where each goes on if the next step decodes it."""
        self._parts: list[_Part] = []
        self._slots: list[list[int]] = []
        """Of each step that the pool does not have yet, where its keys and values are to go."""
        self._memory = cache.pool.new_empty(0)

    def arrange(self, decodes: list[BatchRow]) -> list[BatchRow] | None:
        """Get ready for a step.

        Returns:
            `decodes` in the order of `segments`; None if the step has to read block tables.
        """
        self.write_back()
        by_seq_id = {row.seq_id: row for row in decodes}
        if self._expected != {row.seq_id: row.start for row in decodes}:
            going_on = {i for i, row in by_seq_id.items() if self._expected.get(i) == row.start}
            for part in self._parts:
                part.keep(going_on)
            self._parts = [part for part in self._parts if part.seq_ids]
        self._expected = {row.seq_id: row.end for row in decodes}
        has_room = all(part.has_room() for part in self._parts)
        for part in self._parts:
            part.column += 1
        held = {seq_id for part in self._parts for seq_id in part.seq_ids}
        joining = [row for row in decodes if row.seq_id not in held]
        if not (has_room and all(self._join(row) for row in joining)):
            self._copy(sorted(decodes, key=lambda row: row.end))
        if not self._parts:
            return None
        return [by_seq_id[seq_id] for part in self._parts for seq_id in part.seq_ids]

    def advance(self, slots: list[int]) -> bool:
        """Get ready for a step that takes just the sequences of the last one a token further.

        It need not write to the pool: `write_back` does, once for many steps.

        Args:
            slots: Of the pool, for the step's keys and values, in the order of `segments`.

        Returns:
            Whether there is room for it; if not, the step has to be arranged.
        """
        if not self._parts or not all(part.has_room() for part in self._parts):
            return False
        for part in self._parts:
            part.column += 1
        self._expected = {seq_id: end + 1 for seq_id, end in self._expected.items()}
        self._slots.append(slots)
        return True

    def write_back(self) -> None:
        """Bring the pool up to date; do so before anything else reads or writes it."""
        if not self._slots:
            return
        # [layers, slots, kv_heads, 2 * head_dim]
        pool = self._cache.pool.flatten(1, 2)
        slots = torch.tensor(self._slots)
        sizes = [len(part.seq_ids) for part in self._parts]
        for part, own_slots in zip(self._parts, torch.split(slots, sizes, dim=1), strict=True):
            content = part.newest(len(slots))
            pool.index_copy_(1, own_slots.flatten(), content.flatten(1, 2))
        self._slots = []

    def segments(self, start: int) -> list[AttentionSegment]:
        """How to compute the rows that `arrange` returned, from token `start` of the step on."""
        segments = []
        for part in self._parts:
            end = start + len(part.seq_ids)
            context = part.context(self._cache.windows)
            segments.append(AttentionSegment(start, end, len(part.seq_ids), context))
            start = end
        return segments

    def _join(self, row: BatchRow) -> bool:
        """Add a sequence to one of the parts, if there is a place for it."""
        for part in self._parts:
            if part.takes(row.end):
                part.add(row, self._cache.pool)
                return True
        return False

    def _copy(self, rows: list[BatchRow]) -> None:
        """Copy everything anew: rows, in order of length."""
        self._parts = []
        groups: list[list[BatchRow]] = []
        for row in rows:
            if not groups or len(groups[-1]) * (row.end - groups[-1][-1].end) > _TOKENS_PER_CALL:
                groups.append([])
            groups[-1].append(row)
        per_token = self._cache.pool[:, 0, 0].numel()
        # With places for as many sequences again, or at least some room, if there may be.
        for places, room in ((2, _ROOM), (1, _ROOM), (1, _ROOM // 8)):
            shapes = [(places * len(group), _aligned(group[-1].end + room)) for group in groups]
            sizes = [per_token * places * columns for places, columns in shapes]
            if sum(sizes) <= self._cache.pool.numel():
                break
        else:
            return
        if sum(sizes) > self._memory.numel():
            self._memory = self._cache.pool.new_empty(sum(sizes))
        for group, shape, memory in zip(
            groups, shapes, torch.split(self._memory[: sum(sizes)], sizes), strict=True
        ):
            part = self._empty_part(memory, *shape, column=group[-1].end - 1)
            for row in group:
                part.add(row, self._cache.pool)
            self._parts.append(part)

    def _empty_part(self, memory: Tensor, places: int, columns: int, column: int) -> _Part:
        num_heads, head_dim = self._cache.num_kv_heads, self._cache.head_dim
        keys, values = memory.chunk(2)
        return _Part(
            keys=keys.view(-1, places, num_heads, head_dim, columns),
            values=values.view(-1, places, num_heads, columns, head_dim),
            mask=memory.new_empty(places, num_heads, columns),
            column=column,
            seq_ids=[],
            starts=[],
        )


def _aligned(columns: int) -> int:
    return -(-columns // _ALIGNMENT) * _ALIGNMENT
