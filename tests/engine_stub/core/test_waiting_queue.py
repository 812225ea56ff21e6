"""The number of sequences in a queue."""

import pytest

from engine_stub.core.waiting_queue import WaitingQueue
from seqtop.sequence import SamplingParams, Sequence, SequenceGroup, SequenceStatus, token_inputs


def group(request_id: str, num_seqs: int = 1) -> SequenceGroup:
    seqs = [Sequence(index, token_inputs([1]), 4) for index in range(num_seqs)]
    return SequenceGroup(request_id, seqs, 0.0, sampling_params=SamplingParams())


def test_sequences_are_counted_as_they_were_when_added() -> None:
    queue = WaitingQueue(lambda seq_group: (0, ord(seq_group.request_id)))
    single, several = group("a"), group("b", 3)
    several.seqs[0].status = SequenceStatus.FINISHED_STOPPED
    queue.add(single)
    queue.add(several)
    assert queue.num_seqs == 3
    for seq in several.seqs:
        seq.status = SequenceStatus.FINISHED_ABORTED
    for _ in range(2):
        queue.discard(several)
        assert queue.num_seqs == 1
    queue.discard(single)
    with pytest.raises(IndexError):
        _ = queue.head
