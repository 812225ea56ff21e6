"""`ExecuteModelRequest`."""

import operator
from typing import Any

import pytest
import torch

from seqtop.sequence import (
    ExecuteModelRequest,
    SamplingParams,
    SequenceData,
    SequenceError,
    SequenceGroupMetadata,
    SequenceGroupState,
)


def full(request_id: str = "r", *seq_ids: int, **options: Any) -> SequenceGroupMetadata:
    seq_ids = seq_ids or (0,)
    seq_data = {seq_id: SequenceData.from_seqs([1, 2, 3]) for seq_id in seq_ids}
    tables = {seq_id: [seq_id] for seq_id in seq_ids}
    fields: dict[str, Any] = {"is_prompt": True, "sampling_params": SamplingParams()} | options
    return SequenceGroupMetadata(request_id, seq_data=seq_data, block_tables=tables, **fields)


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
