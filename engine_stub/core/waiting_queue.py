"""A queue of sequence groups that do not run, with the number of sequences in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sortedcontainers import SortedKeyList

from seqtop.sequence import Sequence, SequenceGroup, SequenceStatus

# A global name: looking up a member of an enum class takes longer than the comparison.
_LAST_UNFINISHED = SequenceStatus.SWAPPED


def unfinished_seqs(seq_group: SequenceGroup) -> list[Sequence]:
    """Returns the unfinished sequences of a group: all of one status, and of one length."""
    if seq_group.is_single_seq and seq_group.first_seq.status <= _LAST_UNFINISHED:
        return seq_group.seqs  # not copied: this is called for every group several times a step
    return [seq for seq in seq_group.seqs if not seq.is_finished()]


class WaitingQueue:
    """Groups in the order of `rank`. Their numbers of sequences must not change in the queue.

    Attributes:
        num_seqs: Unfinished sequences of all groups. It is counted as groups come and go, because
            each step reports it and there may be thousands of groups.

    Args:
        rank: Returns the sort key of a group.
    """

    def __init__(self, rank: Callable[[SequenceGroup], tuple[float, ...]]) -> None:
        self.num_seqs = 0
        self._groups = SortedKeyList(key=rank)
        self._num_seqs_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[SequenceGroup]:
        return iter(self._groups)

    @property
    def head(self) -> SequenceGroup:
        """The first group; raises IndexError if there is none."""
        group: SequenceGroup = self._groups[0]
        return group

    def add(self, seq_group: SequenceGroup) -> None:
        """Adds a group at the position of its rank."""
        self._groups.add(seq_group)
        self._num_seqs_of[seq_group.request_id] = len(unfinished_seqs(seq_group))
        self.num_seqs += self._num_seqs_of[seq_group.request_id]

    def discard(self, seq_group: SequenceGroup) -> None:
        """Removes a group, aborted or not; does nothing if it is not in the queue."""
        if seq_group.request_id in self._num_seqs_of:
            self._groups.remove(seq_group)
            self.num_seqs -= self._num_seqs_of.pop(seq_group.request_id)
