"""Metadata of sequence groups, its deltas, and the requests that carry them."""

import operator
from typing import Any

import pytest
import torch

from seqtop.sequence import (
    ExecuteModelRequest,
    LoRARequest,
    PromptAdapterRequest,
    SamplingParams,
    SequenceData,
    SequenceDataDelta,
    SequenceError,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceGroupState,
    SequenceStage,
    get_all_seq_ids,
    get_all_seq_ids_and_request_ids,
)
from seqtop.wire import encode


def full(request_id: str = "r", *seq_ids: int, **options: Any) -> SequenceGroupMetadata:
    seq_ids = seq_ids or (0,)
    seq_data = {seq_id: SequenceData.from_seqs([1, 2, 3]) for seq_id in seq_ids}
    tables = {seq_id: [seq_id] for seq_id in seq_ids}
    fields: dict[str, Any] = {"is_prompt": True, "sampling_params": SamplingParams()} | options
    return SequenceGroupMetadata(request_id, seq_data=seq_data, block_tables=tables, **fields)


def change(*tokens: int) -> SequenceDataDelta:
    return SequenceDataDelta(list(tokens), -1.5, 3, SequenceStage.DECODE)


def delta(request_id: str, changes: dict[int, SequenceDataDelta]) -> SequenceGroupMetadataDelta:
    return SequenceGroupMetadataDelta(
        changes,
        request_id,
        {0: [8, 9]},
        is_prompt=False,
        do_sample=False,
        computed_block_nums=[8],
        state=SequenceGroupState(5, 4),
    )


def test_chunk_size_defaults_to_what_there_is_to_compute() -> None:
    assert full().token_chunk_size == 3
    assert full(is_prompt=False).token_chunk_size == 1
    assert full(token_chunk_size=2).token_chunk_size == 2
    assert full(token_chunk_size=0).token_chunk_size == 0


def test_a_prompt_without_sequences_needs_a_chunk_size() -> None:
    with pytest.raises(SequenceError, match="'r' has neither sequences nor a chunk size"):
        SequenceGroupMetadata("r", True, {}, None, {})
    assert SequenceGroupMetadata("r", True, {}, None, {}, token_chunk_size=4).seq_data == {}
    assert SequenceGroupMetadata("r", False, {}, None, {}).token_chunk_size == 1


def test_properties() -> None:
    group = full(
        "r",
        7,
        8,
        lora_request=LoRARequest("l", 3, "/l"),
        prompt_adapter_request=PromptAdapterRequest("p", 4, "/p", 8),
    )
    assert group.get_first_seq_id() == 7
    assert (group.lora_int_id, group.prompt_adapter_id) == (3, 4)
    assert group.prompt_adapter_num_virtual_tokens == 8
    assert (full().lora_int_id, full().prompt_adapter_id) == (0, 0)
    assert full().prompt_adapter_num_virtual_tokens == 0
    assert full().is_single_step_prompt
    assert not full(do_sample=False).is_single_step_prompt
    assert not full(is_prompt=False).is_single_step_prompt


def test_a_delta_replaces_all_but_two_fields() -> None:
    group = full(computed_block_nums=[1])
    group.apply_delta(delta("r", {0: change(7)}))
    assert group.seq_data[0].get_token_ids() == [1, 2, 3, 7]
    assert group.seq_data[0].stage is SequenceStage.DECODE
    assert group.block_tables == {0: [8, 9]}
    assert (group.is_prompt, group.do_sample, group.token_chunk_size) == (False, False, None)
    assert group.computed_block_nums == [1]
    assert group.state == SequenceGroupState()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (delta("other", {0: change(7)}), "a delta of request 'other' cannot change 'r'"),
        (delta("r", {0: change(7), 5: change(8)}), "'r' has no sequence 5"),
        (delta("r", {0: change(7), 1: change(2**63)}), "invalid token id"),
    ],
    ids=["request", "sequence", "token"],
)
def test_a_wrong_delta_changes_nothing(wrong: SequenceGroupMetadataDelta, reason: str) -> None:
    group = full("r", 0, 1)
    before = encode(group)
    with pytest.raises(SequenceError, match=reason):
        group.apply_delta(wrong)
    assert encode(group) == before


def test_steps_of_a_multi_step_run() -> None:
    group = full(state=SequenceGroupState(2))
    group.finish_step()
    assert group.state.remaining_steps == 1
    group.finish_step()
    with pytest.raises(SequenceError, match="no step left"):
        group.finish_step()
    with pytest.raises(SequenceError, match="no step left in None"):
        full(state=None).finish_step()


def test_all_sequence_ids() -> None:
    groups = [full("a", 3, 1), full("b", 2), full("a", 4)]
    assert get_all_seq_ids(groups) == [3, 1, 2, 4]
    assert get_all_seq_ids_and_request_ids(groups) == ([3, 1, 2, 4], {"a": {1, 3, 4}, "b": {2}})
    assert get_all_seq_ids([]) == []


def test_step_of_a_request() -> None:
    request = ExecuteModelRequest([full(state=SequenceGroupState(3, 0)), full()])
    assert (request.is_first_multi_step, request.is_last_step, request.current_step) == (
        True,
        False,
        0,
    )
    request.seq_group_metadata_list[0].state.current_step = 2
    assert (request.is_first_multi_step, request.is_last_step, request.current_step) == (
        False,
        True,
        2,
    )


@pytest.mark.parametrize("groups", [[], [full(state=None)]], ids=["no group", "no state"])
def test_a_request_without_a_step(groups: list[Any]) -> None:
    for name in ("is_first_multi_step", "is_last_step", "current_step"):
        with pytest.raises(SequenceError, match="no current step"):
            operator.attrgetter(name)(ExecuteModelRequest(groups))


def test_a_clone_shares_no_block_list() -> None:
    original = ExecuteModelRequest(
        [full()],
        [(1, 2)],
        [(3, 4)],
        [(5, 6)],
        virtual_engine=1,
        num_lookahead_slots=2,
        running_queue_size=3,
        num_steps=4,
        spec_step_idx=5,
        finished_requests_ids=["x"],
        last_sampled_token_ids=torch.tensor([7]),
        async_callback=operator.add,
    )
    clone = original.clone([])
    assert clone.seq_group_metadata_list == []
    for name in ("blocks_to_swap_in", "blocks_to_swap_out", "blocks_to_copy"):
        assert getattr(clone, name) == getattr(original, name)
        assert getattr(clone, name) is not getattr(original, name)
    for name in ("virtual_engine", "num_lookahead_slots", "running_queue_size", "num_steps"):
        assert getattr(clone, name) == getattr(original, name)
    assert clone.spec_step_idx is None
    assert clone.finished_requests_ids is original.finished_requests_ids
    assert clone.async_callback is operator.add
    assert clone.last_sampled_token_ids is not None
    clone.last_sampled_token_ids += 1
    assert original.last_sampled_token_ids.tolist() == [7]
    assert ExecuteModelRequest([]).clone([]).last_sampled_token_ids is None
