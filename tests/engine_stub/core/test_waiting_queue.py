"""The order of a queue, and the number of sequences in it."""

import pytest

from engine_stub.core.waiting_queue import WaitingQueue, unfinished_seqs
from seqtop.sequence import SamplingParams, Sequence, SequenceGroup, SequenceStatus, token_inputs


def group(request_id: str, num_seqs: int = 1) -> SequenceGroup:
    seqs = [Sequence(index, token_inputs([1]), 4) for index in range(num_seqs)]
    return SequenceGroup(request_id, seqs, 0.0, sampling_params=SamplingParams())


def make_queue(order: str) -> WaitingQueue:
    return WaitingQueue(lambda seq_group: (0, order.index(seq_group.request_id)))


def test_the_head_has_the_lowest_rank() -> None:
    queue = make_queue("abc")
    for request_id in "cab":
        queue.add(group(request_id))
    assert [seq_group.request_id for seq_group in queue] == ["a", "b", "c"]
    assert queue.head.request_id == "a"
    assert len(queue) == 3


def test_sequences_are_counted_as_they_were_when_added() -> None:
    queue = make_queue("ab")
    single, several = group("a"), group("b", 3)
    several.seqs[0].status = SequenceStatus.FINISHED_STOPPED
    queue.add(single)
    queue.add(several)
    assert queue.num_seqs == 3
    for seq in several.seqs:
        seq.status = SequenceStatus.FINISHED_ABORTED
    queue.discard(several)
    assert queue.num_seqs == 1
    queue.discard(several)
    assert queue.num_seqs == 1
    queue.discard(single)
    with pytest.raises(IndexError):
        _ = queue.head


def test_finished_sequences_are_left_out() -> None:
    several, single = group("a", 3), group("b")
    several.seqs[1].status = SequenceStatus.FINISHED_STOPPED
    assert unfinished_seqs(several) == [several.seqs[0], several.seqs[2]]
    assert unfinished_seqs(single) == single.seqs
    single.first_seq.status = SequenceStatus.FINISHED_ABORTED
    assert unfinished_seqs(single) == []
