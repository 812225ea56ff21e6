"""The worker's state, built of fulls and deltas, equals that of the scheduler."""

import msgspec
import pytest

from engine_stub.engine import LLMEngine
from engine_stub.worker.model_output import ModelOutput
from seqtop.sequence import (
    ExecuteModelRequest,
    SamplingParams,
    SequenceData,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
)
from seqtop.wire import encode
from tests.support.running import MakeEngine


def assert_same_view(engine: LLMEngine, sent: ExecuteModelRequest) -> None:
    for metadata in sent.seq_group_metadata_list:
        seq = engine.seq_groups[metadata.request_id].first_seq
        known = engine.worker.seq_groups[metadata.request_id]
        for field in msgspec.structs.fields(SequenceData):
            mine, theirs = (
                getattr(data, field.name) for data in (seq.data, known.seq_data[seq.seq_id])
            )
            assert mine == theirs, f"{metadata.request_id}: {field.name}"
        assert known.block_tables == {seq.seq_id: engine.block_manager.get_block_table(seq)}
        assert known.token_chunk_size == metadata.token_chunk_size
        assert known.do_sample == metadata.do_sample
        assert known.is_prompt == metadata.is_prompt == seq.is_prefill()


def test_same_view_at_every_step(make_engine: MakeEngine) -> None:
    engine = make_engine(num_gpu_blocks=20, max_num_batched_tokens=12, max_num_seqs=6)
    execute = engine.worker.execute_model
    kinds: dict[str, list[type]] = {}

    def execute_and_compare(execute_model_req: ExecuteModelRequest) -> ModelOutput:
        sent, before = execute_model_req, encode(execute_model_req)
        for metadata in sent.seq_group_metadata_list:
            kinds.setdefault(metadata.request_id, []).append(type(metadata))
        output = execute(sent)
        assert_same_view(engine, sent)
        assert encode(sent) == before
        return output

    engine.worker.execute_model = execute_and_compare
    for index in range(10):
        prompt = [1 + index % 3] * (5 + 4 * index)
        engine.add_request(f"r{index}", prompt, SamplingParams(temperature=0, max_tokens=12))
    preempted: list[str] = []
    while engine.has_unfinished_requests():
        preempted += [preemption.request_id for preemption in engine.step().preemptions]

    assert preempted
    for request_id, sent in kinds.items():
        num_fulls = 1 + preempted.count(request_id)
        assert sent.count(SequenceGroupMetadata) == num_fulls
        assert sent.count(SequenceGroupMetadataDelta) == len(sent) - num_fulls
        assert sent[0] is SequenceGroupMetadata


def test_sent_metadata_does_not_change(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request("r", [5] * 10, SamplingParams(temperature=0, max_tokens=8))
    full = engine.step().execute_model_req.seq_group_metadata_list[0]
    delta = engine.step().execute_model_req.seq_group_metadata_list[0]
    table = dict(delta.block_tables)
    while engine.has_unfinished_requests():
        engine.step()
    assert full.seq_data[0].get_token_ids() == [5] * 10
    assert full.seq_data[0].get_num_computed_tokens() == 0
    assert full.block_tables == {0: [0, 1, 2]}
    assert delta.block_tables == table == {0: [0, 1, 2]}
    assert len(delta.seq_data_delta[0].new_output_token_ids) == 1


def test_finished_requests_leave_the_worker(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=2, seed=1))
    engine.add_request("b", [4, 5, 6], SamplingParams(temperature=1, max_tokens=9, seed=1))
    engine.step()
    engine.step()
    assert set(engine.worker.seq_groups) == {"a", "b"}
    record = engine.step()
    assert record.execute_model_req.finished_requests_ids == ["a"]
    assert set(engine.worker.seq_groups) == {"b"}
    while engine.has_unfinished_requests():
        record = engine.step()
    assert record.execute_model_req.seq_group_metadata_list == []
    assert record.execute_model_req.finished_requests_ids == ["b"]
    assert engine.worker.seq_groups == {}


def test_an_id_can_be_used_again_at_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    params = SamplingParams(temperature=0, max_tokens=2)
    engine.add_request("a", [1, 2, 3], params)
    engine.step()
    assert engine.step().finished
    second = engine.add_request("a", [7, 8, 9], params)[0]
    while engine.has_unfinished_requests():
        engine.step()
    assert second.first_seq.get_output_len() == 2


def test_a_delta_of_an_unknown_group_is_refused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request("a", [1, 2, 3], SamplingParams(temperature=0, max_tokens=3))
    engine.step()
    engine.worker.seq_groups.clear()
    with pytest.raises(KeyError, match="a"):
        engine.step()
