"""Operations on a `SequenceGroup` of several sequences that vLLM's data model does not have."""

from __future__ import annotations

from seqtop.sequence import Sequence, SequenceGroup


def unfinished_seqs(seq_group: SequenceGroup) -> list[Sequence]:
    """Returns the unfinished sequences of a group: all of one status, and of one length."""
    if seq_group.is_single_seq and not seq_group.first_seq.is_finished():
        return seq_group.seqs  # not copied: this is called for every group several times a step
    return [seq for seq in seq_group.seqs if not seq.is_finished()]


def replace_seqs(seq_group: SequenceGroup, seqs: list[Sequence]) -> None:
    """Replaces the sequences of a group; the first one becomes its `first_seq`."""
    seq_group.seqs = seqs
    seq_group.first_seq = seqs[0]
    seq_group.is_single_seq = len(seqs) == 1
    seq_group.seqs_dict = {seq.seq_id: seq for seq in seqs}
