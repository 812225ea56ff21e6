"""The rows that a search finds; it hides none."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from seqtop.state.filter import NO_FILTER, Filter
from seqtop.state.model import EngineData
from seqtop.state.sort_key import SortKey


class SearchHits:
    """The ids of the rows that match `filter`, in the order of the rows.

    Args:
        keys: The keys of all rows by id, each ending in the id. The owner reports each change.
    """

    def __init__(self, keys: Mapping[int, SortKey]) -> None:
        self.filter = NO_FILTER
        """Accepts the rows that are found."""
        self._keys = keys
        self._ids: set[int] = set()
        self._sorted: list[SortKey] | None = []
        """The keys of the rows found, sorted; `None` after a change."""

    def __contains__(self, seq_id: object) -> bool:
        return seq_id in self._ids

    def search(self, state: EngineData, query: Filter) -> None:
        """Searches all rows for matches of `query`; an empty filter has none."""
        self.filter = query
        query.reset()
        self._ids = {
            seq_id
            for seq_id in self._keys
            if query.tests and seq_id in state.sequences and self._matches(state, seq_id)
        }
        self._sorted = None

    def place(self, seq_id: int | None) -> tuple[int, int]:
        """Returns the number of this row among the rows found, from 1, and their total.

        The first is 0 for a row that the search does not find.
        """
        if seq_id is None or seq_id not in self._ids:
            return 0, len(self._ids)
        return bisect_left(self._sorted_keys(), self._keys[seq_id]) + 1, len(self._ids)

    def next(self, seq_id: int | None, direction: int, *, here: bool = False) -> int | None:
        """Returns the row found after this row, or before it; wraps around at the ends.

        Args:
            seq_id: The row to start from; the first row found if it is not shown.
            direction: Positive to go down, negative to go up.
            here: Return the row itself if the search finds it.
        """
        hits = self._sorted_keys()
        if not hits:
            return None
        if seq_id is None or seq_id not in self._keys:
            return int(hits[0][-1])
        place = bisect_left(hits, self._keys[seq_id])
        if direction < 0:
            place -= 1
        elif seq_id in self._ids and not here:
            place += 1
        return int(hits[place % len(hits)][-1])

    def update(self, state: EngineData, seq_id: int) -> None:
        """Searches one row again, after its sequence has changed."""
        if self.filter.tests and self._matches(state, seq_id) != (seq_id in self._ids):
            self._ids ^= {seq_id}
            self._sorted = None

    def moved(self) -> None:
        """Takes note that keys of rows have changed."""
        self._sorted = None

    def discard(self, seq_id: int) -> None:
        """Removes a row that is hidden."""
        if seq_id in self._ids:
            self._ids.discard(seq_id)
            self._sorted = None

    def clear(self) -> None:
        """Removes all rows, before they are added again."""
        self._ids.clear()
        self._sorted = None
        self.filter.reset()

    def _matches(self, state: EngineData, seq_id: int) -> bool:
        sequence = state.sequences[seq_id]
        return self.filter.matches(state.requests[sequence.request_id], sequence, state.time)

    def _sorted_keys(self) -> list[SortKey]:
        if self._sorted is None:
            self._sorted = sorted(self._keys[seq_id] for seq_id in self._ids)
        return self._sorted
