"""`SequenceData` and its deltas."""

from array import array

import pytest
import torch

from seqtop.sequence import (
    SequenceData,
    SequenceDataDelta,
    SequenceError,
    SequenceStage,
)

PREFILL, DECODE = SequenceStage.PREFILL, SequenceStage.DECODE


def test_from_seqs() -> None:
    data = SequenceData.from_seqs([1, 2], (3,))
    assert data.prompt_token_ids == data.get_prompt_token_ids() == (1, 2)
    assert data.output_token_ids == data.get_output_token_ids() == (3,)
    assert data.prompt_token_ids_array == array("l", [1, 2])
    assert data.output_token_ids_array == array("l", [3])
    assert data.get_token_ids() == [1, 2, 3]
    assert (data.get_len(), data.get_prompt_len(), data.get_output_len()) == (3, 2, 1)
    assert data.stage is PREFILL
    assert data.cumulative_logprob == 0.0
    assert data.get_delta_and_reset().new_output_token_ids == []


def test_from_prompt_token_counts() -> None:
    assert SequenceData.from_prompt_token_counts((5, 2), (9, 1), (4, 0)).prompt_token_ids == (
        5,
        5,
        9,
    )
    assert SequenceData.from_prompt_token_counts().get_len() == 0


@pytest.mark.parametrize("typecode", ["i", "q", "d"])
def test_other_arrays_are_refused(typecode: str) -> None:
    with pytest.raises(SequenceError, match=f"not '{typecode}'"):
        SequenceData(array(typecode, [1]))
    with pytest.raises(AssertionError):  # which is what vLLM raises
        SequenceData(array("l"), array(typecode, [1]))


def test_the_prompt_cannot_be_replaced() -> None:
    data = SequenceData.from_seqs([1])
    with pytest.raises(NotImplementedError):
        data.prompt_token_ids = (2,)


def test_replacing_the_output_rebuilds_the_cache() -> None:
    data = SequenceData.from_seqs([1], [2, 3])
    data.output_token_ids = (7,)
    assert data.output_token_ids == (7,)
    assert data.get_token_ids() == [1, 7]


def test_appending() -> None:
    data = SequenceData.from_seqs([1, 2])
    assert data.get_last_token_id() == 2
    data.append_token_id(7, -0.5)
    data.append_token_id(8, -0.25)
    assert data.get_last_token_id() == 8
    assert data.output_token_ids == (7, 8)
    assert data.get_token_ids() == [1, 2, 7, 8]
    assert data.cumulative_logprob == -0.75


@pytest.mark.parametrize(
    ("num_tokens", "prefix"),
    [
        (0, ((), None)),
        (2, ((1, 2), None)),
        (3, ((1, 2, 3), None)),
        (4, ((1, 2, 3), (4,))),
        (9, ((1, 2, 3), (4, 5))),
    ],
)
def test_prefix(num_tokens: int, prefix: tuple[object, object]) -> None:
    assert SequenceData.from_seqs([1, 2, 3], [4, 5]).get_prefix_token_ids(num_tokens) == prefix


def test_stage_turns_when_all_is_computed() -> None:
    data = SequenceData.from_seqs([1, 2, 3])
    data.update_num_computed_tokens(2)
    assert (data.stage, data.get_num_uncomputed_tokens()) == (PREFILL, 1)
    data.update_num_computed_tokens(1)
    assert (data.stage, data.get_num_uncomputed_tokens()) == (DECODE, 0)
    data.append_token_id(4, 0.0)
    assert (data.stage, data.get_num_uncomputed_tokens()) == (DECODE, 1)


def test_no_more_can_be_computed_than_there_is() -> None:
    data = SequenceData.from_seqs([1, 2])
    data.update_num_computed_tokens(1)
    with pytest.raises(SequenceError, match="3 computed tokens of 2"):
        data.update_num_computed_tokens(2)
    assert data.get_num_computed_tokens() == 1


def test_recomputation_keeps_the_output_and_covers_it() -> None:
    data = SequenceData.from_seqs([1, 2])
    data.update_num_computed_tokens(2)
    data.append_token_id(3, -0.5)
    data.reset_state_for_recompute()
    assert data.stage is PREFILL
    assert data.get_num_uncomputed_tokens() == 3
    assert data.output_token_ids == (3,)
    assert data.cumulative_logprob == -0.5
    assert data.get_delta_and_reset().new_output_token_ids == []


def test_deltas_carry_what_is_new_once() -> None:
    data = SequenceData.from_seqs([1])
    data.update_num_computed_tokens(1)
    data.append_token_id(2, -0.5)
    assert data.get_delta_and_reset() == SequenceDataDelta([2], -0.5, 1, DECODE)
    assert data.get_delta_and_reset() == SequenceDataDelta([], -0.5, 1, DECODE)


def test_a_full_sent_with_pending_tokens_and_a_delta_repeat_them() -> None:
    sender = SequenceData.from_seqs([1])
    receiver = SequenceData.from_seqs([1])
    sender.append_token_id(2, 0.0)
    receiver.append_token_id(2, 0.0)
    receiver.apply_delta(sender.get_delta_and_reset())
    assert receiver.output_token_ids == (2, 2)


def test_applying_a_delta_replaces_and_appends() -> None:
    data = SequenceData.from_seqs([1], [2])
    data.apply_delta(SequenceDataDelta([3, 4], -2.0, 3, DECODE))
    assert data.get_token_ids() == [1, 2, 3, 4]
    assert data.output_token_ids == (2, 3, 4)
    assert data.cumulative_logprob == -2.0
    assert data.get_num_computed_tokens() == 3
    assert data.stage is DECODE


def test_a_delta_that_cannot_be_applied_changes_nothing() -> None:
    data = SequenceData.from_seqs([1], [2])
    before = repr(data), data.get_token_ids().copy(), data.stage
    with pytest.raises(SequenceError, match="invalid token id"):
        data.apply_delta(SequenceDataDelta([3, 2**63], -2.0, 3, DECODE))
    assert (repr(data), data.get_token_ids(), data.stage) == before


def test_cached_tokens_and_rope_position() -> None:
    data = SequenceData.from_seqs([1, 2])
    data.update_num_cached_tokens(2)
    data.mrope_position_delta = -1
    assert (data.get_num_cached_tokens(), data.mrope_position_delta) == (2, -1)


def test_repr() -> None:
    data = SequenceData.from_seqs([1], [2])
    assert repr(data) == (
        "SequenceData(prompt_token_ids=array('l', [1]), prompt_embeds.shape=None, "
        "output_token_ids=(2,), cumulative_logprob=0.0, get_num_computed_tokens=0)"
    )


def test_embeddings_follow_the_tokens() -> None:
    prompt = torch.ones(2, 4)
    data = SequenceData.from_seqs([0, 0], prompt_embeds=prompt)
    assert data.get_token_embeddings() is prompt
    assert data.output_embeds is None
    data.append_token_id(5, 0.0, torch.full((4,), 2.0))
    data.append_token_id(6, 0.0, torch.full((4,), 3.0))
    output_embeds: torch.Tensor | None = data.output_embeds
    assert output_embeds is not None
    assert output_embeds.tolist() == [[2.0] * 4, [3.0] * 4]
    assert data.get_token_embeddings().tolist() == [[1.0] * 4, [1.0] * 4, [2.0] * 4, [3.0] * 4]
    assert "prompt_embeds.shape=torch.Size([2, 4])" in repr(data)


def test_embeddings_can_be_set() -> None:
    data = SequenceData.from_seqs([0])
    data.prompt_embeds = torch.ones(1, 2)
    data.output_embeds = torch.zeros(1, 2)
    assert data.prompt_embeds.tolist() == [[1.0, 1.0]]
    assert data.get_token_embeddings().tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_output_embeddings_need_a_prompt_of_embeddings() -> None:
    data = SequenceData.from_seqs([0])
    with pytest.raises(SequenceError, match="prompt embeddings"):
        data.append_token_id(5, 0.0, torch.ones(4))
    with pytest.raises(SequenceError, match="prompt embeddings"):
        SequenceData.from_seqs([0]).output_embeds = torch.ones(1, 4)
    assert data.get_output_len() == 0


def test_a_token_embedding_is_one_row() -> None:
    data = SequenceData.from_seqs([0], prompt_embeds=torch.ones(1, 4))
    with pytest.raises(SequenceError, match="1 dimension, not 2"):
        data.append_token_id(5, 0.0, torch.ones(1, 4))
    assert data.get_output_len() == 0
