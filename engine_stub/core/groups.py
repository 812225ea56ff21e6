"""What the engine does to a `SequenceGroup` that holds several sequences."""

from __future__ import annotations

from seqtop.sequence import Sequence, SequenceGroup


def unfinished(seq_group: SequenceGroup) -> list[Sequence]:
    """The sequences of a group that go on: all of one status, and of one length."""
    if seq_group.is_single_seq and not seq_group.first_seq.is_finished():
        return seq_group.seqs  # of so many groups, so often, that it should not be copied
    return [seq for seq in seq_group.seqs if not seq.is_finished()]


def replace_seqs(seq_group: SequenceGroup, seqs: list[Sequence]) -> None:
    """Let a group go on with other sequences; the first one stands for it."""
    seq_group.seqs = seqs
    seq_group.first_seq = seqs[0]
    seq_group.is_single_seq = len(seqs) == 1
    seq_group.seqs_dict = {seq.seq_id: seq for seq in seqs}
