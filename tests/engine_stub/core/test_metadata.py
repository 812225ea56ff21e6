"""Descriptions of groups for the worker: complete once, then deltas."""

from engine_stub.core.metadata import snapshot
from seqtop.sequence import (
    SequenceData,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
)
from tests.support.running import MakeEngine, greedy


def test_a_snapshot_shares_no_output_and_has_nothing_pending() -> None:
    data = SequenceData.from_seqs([1, 2], [3])
    data.append_token_id(4, -0.5)
    copy = snapshot(data)
    data.append_token_id(5, -0.5)
    assert copy.output_token_ids == (3, 4)
    assert copy.prompt_token_ids == data.prompt_token_ids
    assert copy.get_delta_and_reset().new_output_token_ids == []


def test_a_group_is_described_once_and_then_by_what_is_new(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request("r", [1, 2, 3], greedy(4))
    described = []
    while engine.has_unfinished_requests():
        described += engine.step().execute_model_req.seq_group_metadata_list
    assert [type(description) for description in described] == [
        SequenceGroupMetadata,
        *[SequenceGroupMetadataDelta] * 3,
    ]
    for delta in described[1:]:
        (data,) = delta.seq_data_delta.values()
        assert len(data.new_output_token_ids) == 1
        assert delta.do_sample
