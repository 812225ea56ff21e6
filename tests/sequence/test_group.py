"""`SequenceGroup`: its sequences, its clock and its multi-step run."""

from typing import Any

import pytest
import torch

from seqtop.sequence import (
    Logprob,
    LoRARequest,
    MultiModalInputs,
    MultiModalKwargs,
    PlaceholderRange,
    PromptAdapterRequest,
    Sequence,
    SequenceError,
    SequenceGroup,
    SequenceGroupState,
    SequenceStatus,
    embeds_inputs,
    token_inputs,
)

S = SequenceStatus


def group(*statuses: SequenceStatus, **options: Any) -> SequenceGroup:
    seqs = []
    for seq_id, status in enumerate(statuses or (S.WAITING,)):
        seq = Sequence(seq_id, token_inputs([1, 2, 3], "text", [0, 0, 1]), 4)
        seq.status = status
        seqs.append(seq)
    return SequenceGroup("r", seqs, 100.0, **options)


def decoding(**options: Any) -> SequenceGroup:
    g = group(S.RUNNING, **options)
    g.update_num_computed_tokens(3)
    return g


def multi_modal(seq_id: int, name: str) -> Sequence:
    inputs = MultiModalInputs(
        type="multimodal",
        prompt_token_ids=[5],
        mm_kwargs=MultiModalKwargs({name: 1}),
        mm_placeholders={name: [PlaceholderRange(0, 1)]},
        prompt=name,
    )
    return Sequence(seq_id, inputs, 4)


def test_adapters() -> None:
    g = group(
        lora_request=LoRARequest("l", 3, "/l"),
        prompt_adapter_request=PromptAdapterRequest("p", 4, "/p", 8),
    )
    assert (g.lora_int_id, g.prompt_adapter_id, g.prompt_adapter_num_virtual_tokens) == (3, 4, 8)
    plain = group()
    assert (plain.lora_int_id, plain.prompt_adapter_id) == (0, 0)
    assert plain.prompt_adapter_num_virtual_tokens == 0


def test_counting_by_status() -> None:
    g = group(S.RUNNING, S.WAITING, S.FINISHED_STOPPED, S.RUNNING)
    assert not g.is_single_seq
    assert g.get_seqs() is g.seqs
    assert [seq.seq_id for seq in g.get_seqs(S.RUNNING)] == [0, 3]
    assert [seq.seq_id for seq in g.get_finished_seqs()] == [2]
    assert (g.num_seqs(), g.num_seqs(S.WAITING), g.num_finished_seqs()) == (4, 1, 1)
    assert g.get_max_num_running_seqs() == 3
    assert not g.is_finished()
    for seq in g.seqs:
        seq.status = S.FINISHED_ABORTED
    assert g.is_finished()
    assert g.get_max_num_running_seqs() == 0


def test_counting_in_a_single_sequence() -> None:
    running, finished = group(S.RUNNING), group(S.FINISHED_LENGTH_CAPPED)
    assert (running.num_seqs(S.RUNNING), running.num_seqs(S.WAITING)) == (1, 0)
    assert running.get_seqs(S.WAITING) == running.get_finished_seqs() == []
    assert (running.get_max_num_running_seqs(), finished.get_max_num_running_seqs()) == (1, 0)
    assert (running.is_finished(), finished.is_finished()) == (False, True)


def test_computed_tokens_are_those_of_unfinished_sequences() -> None:
    g = group(S.RUNNING, S.FINISHED_STOPPED)
    assert g.get_num_uncomputed_tokens() == 3
    g.update_num_computed_tokens(2)
    assert g.get_num_uncomputed_tokens() == 1
    assert [seq.get_num_computed_tokens() for seq in g.seqs] == [2, 0]
    assert g.is_prefill()
    g.update_num_computed_tokens(1)
    assert not g.is_prefill()


def test_first_scheduled_time_is_set_once() -> None:
    g = group()
    g.maybe_set_first_scheduled_time(102.5)
    g.maybe_set_first_scheduled_time(109.0)
    assert (g.metrics.first_scheduled_time, g.metrics.time_in_queue) == (102.5, 2.5)


def test_first_token_time_is_that_of_the_first_token() -> None:
    g = decoding()
    g.maybe_set_first_token_time(103.0)
    assert g.metrics.first_token_time is None
    g.first_seq.append_token_id(7, {7: Logprob(0.0)})
    g.maybe_set_first_token_time(104.0)
    g.maybe_set_first_token_time(105.0)
    assert g.metrics.first_token_time == 104.0
    late = decoding()
    for token in (7, 8):
        late.first_seq.append_token_id(token, {token: Logprob(0.0)})
    late.maybe_set_first_token_time(106.0)
    assert late.metrics.first_token_time is None


def test_last_token_time() -> None:
    g = decoding()
    g.set_last_token_time(101.0)
    g.set_last_token_time(101.5)
    assert g.get_last_token_latency() == 0.5
    assert g.metrics.last_token_time == 101.5


def test_there_is_no_token_to_time_in_prefill() -> None:
    g = group()
    with pytest.raises(SequenceError, match="'r' is in prefill"):
        g.set_last_token_time(101.0)
    with pytest.raises(AssertionError):  # which is what vLLM raises
        g.get_last_token_latency()
    assert g.metrics.last_token_time == 100.0


def test_finished_time() -> None:
    g = group()
    g.set_finished_time(110.0)
    assert g.metrics.finished_time == 110.0
    g.set_finished_time(None)
    assert g.metrics.finished_time is None


def test_encoder_sequence() -> None:
    encoder = multi_modal(9, "audio")
    g = group(encoder_seq=encoder)
    assert g.is_encoder_decoder()
    assert g.get_encoder_seq() is encoder
    assert (g.encoder_prompt, g.encoder_prompt_token_ids) == ("audio", [5])
    assert g.multi_modal_data == {"audio": 1}
    assert list(g.multi_modal_placeholders) == ["audio"]

    both = SequenceGroup("r", [multi_modal(0, "image")], 0.0, encoder_seq=encoder)
    assert both.multi_modal_data == {"image": 1}
    assert list(both.multi_modal_placeholders) == ["image"]

    neither = group()
    assert not neither.is_encoder_decoder()
    assert neither.get_encoder_seq() is None
    assert neither.encoder_prompt is None
    assert neither.encoder_prompt_token_ids is None
    assert neither.multi_modal_data == {}
    assert neither.multi_modal_placeholders == {}


def test_prompt_embeddings() -> None:
    assert not group().uses_prompt_embeds()
    assert SequenceGroup(
        "r", [Sequence(0, embeds_inputs(torch.ones(2, 2)), 4)], 0.0
    ).uses_prompt_embeds()


def test_multi_step() -> None:
    g = group()
    g.state.current_step = 2
    g.init_multi_step(5)
    assert g.state == SequenceGroupState(5, 0)
    assert g.state.remaining_steps == 5


@pytest.mark.parametrize(
    ("prefill", "slots", "steps", "multi", "chunking", "num_steps"),
    [
        (True, 7, 4, False, True, 4),  # without multi-step the slots do not matter
        (True, 4, 4, True, True, 4),
        (True, 0, 4, True, False, 1),
        (False, 3, 4, True, True, 4),
        (False, 3, 4, True, False, 4),
        (True, 3, 4, True, True, None),
        (True, 3, 4, True, False, None),
        (False, 4, 4, True, False, None),
        (False, 0, 4, True, True, None),
    ],
)
def test_multi_step_from_lookahead_slots(
    prefill: bool, slots: int, steps: int, multi: bool, chunking: bool, num_steps: int | None
) -> None:
    g = group() if prefill else decoding()
    if num_steps is None:
        with pytest.raises(SequenceError, match=f"{slots} lookahead slots instead of"):
            g.init_multi_step_from_lookahead_slots(slots, steps, multi, chunking)
        assert g.state == SequenceGroupState()
    else:
        g.init_multi_step_from_lookahead_slots(slots, steps, multi, chunking)
        assert g.state == SequenceGroupState(num_steps, 0)
