"""The waiting sequences, in the order in which they will be scheduled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from seqtop.sequence import SequenceStatus
from seqtop.state.model import EngineData, RequestState, SequenceState
from seqtop.state.sort_key import SortKey, queue_key


class WaitingOrder:
    """The ids of the waiting sequences of a state, including those that a filter rejects."""

    def __init__(self) -> None:
        self._keys: dict[int, SortKey] = {}
        self._sorted: list[SortKey] | None = []
        """The keys, sorted; `None` after a change."""

    def __iter__(self) -> Iterator[int]:
        """Yields the ids in no order."""
        return iter(self._keys)

    @property
    def ids(self) -> list[int]:
        """The ids in the order in which they will be scheduled."""
        return [key[-1] for key in self._sorted_keys()]

    def position(self, seq_id: int) -> tuple[int, int] | None:
        """Returns the number of waiting sequences ahead of this one, and the next one's id.

        `None` if the sequence is not waiting. For the head of the queue, the id is its own.
        """
        key = self._keys.get(seq_id)
        if key is None:
            return None
        keys = self._sorted_keys()
        ahead = bisect_left(keys, key)
        return ahead, keys[max(ahead - 1, 0)][-1]

    def update(self, state: EngineData, request: RequestState, sequence: SequenceState) -> None:
        """Adds a sequence that waits, moves it, or removes one that does not wait any more."""
        if sequence.status != SequenceStatus.WAITING:
            self.discard(sequence.seq_id)
            return
        key = (*queue_key(state, request), sequence.seq_id)
        if self._keys.get(sequence.seq_id) != key:
            self._keys[sequence.seq_id] = key
            self._sorted = None

    def discard(self, seq_id: int) -> None:
        """Removes a sequence, if it is in the queue."""
        if self._keys.pop(seq_id, None) is not None:
            self._sorted = None

    def clear(self) -> None:
        """Removes all sequences."""
        self._keys.clear()
        self._sorted = None

    def _sorted_keys(self) -> list[SortKey]:
        if self._sorted is None:
            self._sorted = sorted(self._keys.values())
        return self._sorted
