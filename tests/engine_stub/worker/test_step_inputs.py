"""A sequence's part in a step."""

from engine_stub.spec_decode.speculation import Draft
from engine_stub.worker.step_inputs import BatchRow
from seqtop.sequence import SamplingParams, SequenceData, SequenceGroupMetadata


def test_the_tokens_to_compute_end_with_the_draft() -> None:
    data = SequenceData.from_seqs([1, 2, 3], [4])
    group = SequenceGroupMetadata("r", True, {0: data}, SamplingParams(), {0: [5]})
    row = BatchRow(0, group, 0, data, [5], start=2, end=6, draft=Draft([8, 9]))
    assert row.token_ids == [3, 4, 8, 9]
    row = BatchRow(0, group, 0, data, [5], start=1, end=3, draft=Draft([]))
    assert row.token_ids == [2, 3]
