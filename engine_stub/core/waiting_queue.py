"""A queue of sequence groups that do not run, which knows how many sequences are in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sortedcontainers import SortedKeyList

from engine_stub.core.groups import unfinished
from seqtop.sequence import SequenceGroup


class WaitingQueue:
    """Groups in the order of `rank`; none gets more or fewer sequences while it is here.

    Attributes:
        num_seqs: Unfinished sequences of all groups. Steps tell of it, and there may be thousands.
    """

    def __init__(self, rank: Callable[[SequenceGroup], tuple[int, int]]) -> None:
        self.num_seqs = 0
        self._groups = SortedKeyList(key=rank)
        self._num_seqs_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[SequenceGroup]:
        return iter(self._groups)

    @property
    def head(self) -> SequenceGroup:
        group: SequenceGroup = self._groups[0]
        return group

    def add(self, seq_group: SequenceGroup) -> None:
        self._groups.add(seq_group)
        self._num_seqs_of[seq_group.request_id] = len(unfinished(seq_group))
        self.num_seqs += self._num_seqs_of[seq_group.request_id]

    def discard(self, seq_group: SequenceGroup) -> None:
        """Remove a group, also one that has been aborted; nothing happens if it is not here."""
        if seq_group.request_id in self._num_seqs_of:
            self._groups.remove(seq_group)
            self.num_seqs -= self._num_seqs_of.pop(seq_group.request_id)
