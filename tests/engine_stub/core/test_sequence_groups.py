"""Operations on groups of several sequences."""

from engine_stub.core.sequence_groups import replace_seqs, unfinished_seqs
from seqtop.sequence import SamplingParams, Sequence, SequenceGroup, SequenceStatus, token_inputs


def make_seqs(*seq_ids: int) -> list[Sequence]:
    return [Sequence(seq_id, token_inputs([1]), 4) for seq_id in seq_ids]


def test_finished_sequences_are_left_out() -> None:
    seqs = make_seqs(1, 2, 3)
    seq_group = SequenceGroup("r", seqs, 0.0, sampling_params=SamplingParams())
    seqs[1].status = SequenceStatus.FINISHED_STOPPED
    assert unfinished_seqs(seq_group) == [seqs[0], seqs[2]]
    single = SequenceGroup("s", make_seqs(4), 0.0, sampling_params=SamplingParams())
    assert unfinished_seqs(single) == single.seqs
    single.first_seq.status = SequenceStatus.FINISHED_ABORTED
    assert unfinished_seqs(single) == []


def test_all_views_of_a_groups_sequences_are_replaced() -> None:
    seq_group = SequenceGroup("r", make_seqs(1), 0.0, sampling_params=SamplingParams())
    seqs = make_seqs(5, 4)
    replace_seqs(seq_group, seqs)
    assert seq_group.seqs == seqs
    assert seq_group.first_seq is seqs[0]
    assert not seq_group.is_single_seq
    assert seq_group.seqs_dict == {5: seqs[0], 4: seqs[1]}
