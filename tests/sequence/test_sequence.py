"""`Sequence` and its inputs, and the two enums of where it stands."""

from collections.abc import Callable
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
    SequenceStage,
    SequenceStatus,
    embeds_inputs,
    token_inputs,
)

LORA = LoRARequest("lora", 3, "/lora")
ADAPTER = PromptAdapterRequest("adapter", 4, "/adapter", 8)


def sequence(prompt: list[int] | None = None, **options: Any) -> Sequence:
    return Sequence(0, token_inputs(prompt or [1, 2, 3], "one two three"), 4, **options)


def generate(seq: Sequence, *tokens: int) -> None:
    for token in tokens:
        seq.append_token_id(token, {token: Logprob(-0.5)})


def test_a_new_sequence_waits() -> None:
    seq = sequence(eos_token_id=9)
    assert seq.status is SequenceStatus.WAITING
    assert not seq.is_finished()
    assert seq.is_prefill()
    assert (seq.prompt, seq.prompt_token_ids) == ("one two three", [1, 2, 3])
    assert (seq.output_text, seq.output_logprobs, seq.tokens) == ("", [], None)
    assert (seq.stop_reason, seq.eos_token_id) == (None, 9)
    assert (seq.prefix_offset, seq.read_offset) == (0, 0)
    assert repr(seq) == "Sequence(seq_id=0, status=WAITING, num_blocks=1)"


@pytest.mark.parametrize(("length", "blocks"), [(1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_blocks_needed(length: int, blocks: int) -> None:
    assert sequence(list(range(length))).n_blocks == blocks


def test_generating() -> None:
    seq = sequence()
    seq.data.update_num_computed_tokens(3)
    generate(seq, 7, 8)
    assert seq.get_len() == 5
    assert (seq.get_prompt_len(), seq.get_output_len()) == (3, 2)
    assert seq.get_token_ids() == [1, 2, 3, 7, 8]
    assert (seq.get_prompt_token_ids(), seq.get_output_token_ids()) == ((1, 2, 3), (7, 8))
    assert seq.get_last_token_id() == 8
    assert seq.get_cumulative_logprob() == -1.0
    assert seq.output_logprobs == [{7: Logprob(-0.5)}, {8: Logprob(-0.5)}]


def test_a_token_without_its_logprob_is_refused_whole() -> None:
    seq = sequence()
    with pytest.raises(SequenceError, match="token 7"):
        seq.append_token_id(7, {8: Logprob(-0.5)})
    assert (seq.get_output_len(), seq.output_logprobs) == (0, [])


def test_new_tokens_of_a_step() -> None:
    seq = sequence()
    assert seq.get_num_new_tokens() == 3
    seq.data.update_num_computed_tokens(1)
    assert (seq.get_num_new_tokens(), seq.get_num_computed_tokens()) == (2, 1)
    seq.data.update_num_computed_tokens(2)
    assert not seq.is_prefill()
    assert seq.get_num_new_tokens() == 1
    generate(seq, 7, 8)
    assert seq.get_num_new_tokens() == 1
    seq.reset_state_for_recompute()
    assert seq.is_prefill()
    assert seq.get_num_new_tokens() == 5


def test_text_to_return() -> None:
    seq = sequence()
    seq.output_text = "abcdef"
    assert seq.get_output_text_to_return(0, delta=False) == "abcdef"
    assert seq.get_output_text_to_return(2, delta=False) == "abcd"
    assert seq.get_output_text_to_return(9, delta=False) == ""
    assert seq.get_output_text_to_return(9, delta=True) == ""
    assert seq.get_output_text_to_return(2, delta=True) == "abcd"
    assert seq.get_output_text_to_return(2, delta=True) == ""
    seq.output_text += "gh"
    assert seq.get_output_text_to_return(3, delta=True) == "e"
    seq.status = SequenceStatus.FINISHED_STOPPED
    assert seq.get_output_text_to_return(3, delta=False) == "abcdefgh"
    assert seq.get_output_text_to_return(3, delta=True) == "fgh"


def test_tokens_to_return() -> None:
    seq = sequence()
    assert seq.get_output_token_ids_to_return(delta=True) == []
    generate(seq, 7)
    assert seq.get_output_token_ids_to_return(delta=True) == 7
    generate(seq, 8, 9)
    assert seq.get_output_token_ids_to_return(delta=True) == [8, 9]
    assert seq.get_output_token_ids_to_return(delta=True) == []
    assert seq.get_output_token_ids_to_return(delta=False) == (7, 8, 9)


def test_a_fork_goes_its_own_way() -> None:
    seq = sequence(lora_request=LORA)
    generate(seq, 7)
    seq.output_text = "seven"
    fork = seq.fork(5)
    generate(fork, 8)
    fork.output_text += " eight"
    fork.status = SequenceStatus.RUNNING
    assert (seq.seq_id, fork.seq_id) == (0, 5)
    assert (seq.get_token_ids(), fork.get_token_ids()) == ([1, 2, 3, 7], [1, 2, 3, 7, 8])
    assert (seq.output_text, fork.output_text) == ("seven", "seven eight")
    assert seq.status is SequenceStatus.WAITING
    assert len(seq.output_logprobs) == 1
    assert fork.lora_int_id == 3


def test_hash_of_a_block_depends_on_all_tokens_before_its_end() -> None:
    one, same, other = sequence([1, 2, 3, 4, 5]), sequence([1, 2, 3, 4, 6]), sequence([9, 2, 3, 4])
    assert one.num_hashed_tokens_of_block(1) == 8
    assert one.hash_of_block(0) == same.hash_of_block(0)
    assert one.hash_of_block(1) != same.hash_of_block(1)
    assert one.hash_of_block(0) != other.hash_of_block(0)
    adapted = sequence([1, 2, 3, 4, 5], lora_request=LORA)
    assert one.hash_of_block(0) != adapted.hash_of_block(0)


def test_extra_hash_is_for_adapters() -> None:
    assert sequence().extra_hash() is None
    lora, adapter = sequence(lora_request=LORA), sequence(prompt_adapter_request=ADAPTER)
    assert (lora.lora_int_id, adapter.prompt_adapter_id) == (3, 4)
    assert (sequence().lora_int_id, sequence().prompt_adapter_id) == (0, 0)
    assert None not in {lora.extra_hash(), adapter.extra_hash()}
    assert lora.extra_hash() != adapter.extra_hash()


def test_token_inputs() -> None:
    assert token_inputs([1]) == {"type": "token", "prompt_token_ids": [1]}
    full = token_inputs([1], "one", [0])
    assert full["prompt"] == "one"
    seq = Sequence(0, full, 4)
    assert seq.token_type_ids == [0]
    assert sequence().token_type_ids == []
    assert Sequence(0, token_inputs([1]), 4).prompt is None
    assert seq.multi_modal_data == {}
    assert seq.multi_modal_placeholders == {}


def test_embeds_inputs() -> None:
    embeds = torch.ones(3, 2)
    seq = Sequence(0, embeds_inputs(embeds), 4)
    assert seq.prompt is None
    assert seq.prompt_token_ids == [0, 0, 0]
    assert seq.token_type_ids == []
    assert seq.data.prompt_embeds is embeds
    seq.append_token_id(7, {7: Logprob(-0.5)}, torch.zeros(2))
    assert seq.data.get_token_embeddings().shape == (4, 2)


def test_multi_modal_inputs() -> None:
    placeholders = {"image": [PlaceholderRange(0, 2)]}
    inputs = MultiModalInputs(
        type="multimodal",
        prompt_token_ids=[5, 5],
        mm_kwargs=MultiModalKwargs(pixels=1),
        mm_placeholders=placeholders,
    )
    seq = Sequence(0, inputs, 4)
    assert seq.multi_modal_data == {"pixels": 1}
    assert seq.multi_modal_placeholders == placeholders


def test_placeholder_ranges() -> None:
    mask = torch.tensor([True, False, True])
    assert PlaceholderRange(1, 3).get_num_embeds() == 3
    assert PlaceholderRange(1, 3, mask).get_num_embeds() == 2
    assert PlaceholderRange(1, 3, mask) == PlaceholderRange(1, 3, mask.clone())
    assert PlaceholderRange(1, 3, mask) != PlaceholderRange(1, 3, ~mask)
    assert PlaceholderRange(1, 3, mask) != PlaceholderRange(1, 3)
    assert PlaceholderRange(1, 3) != PlaceholderRange(2, 3)
    assert PlaceholderRange(1, 3) != (1, 3, None)
    assert hash(PlaceholderRange(1, 3)) == hash(PlaceholderRange(1, 3))


def test_adapter_requests() -> None:
    assert (LORA.adapter_id, LORA.name, LORA.path) == (3, "lora", "/lora")
    assert LoRARequest("lora", 7, "/elsewhere") == LORA
    assert len({LORA, LoRARequest("lora", 7, "/elsewhere"), LoRARequest("b", 3, "/lora")}) == 2
    assert LoRARequest("old", 1, lora_local_path="/local").path == "/local"
    assert LoRARequest("both", 1, "/new", "/local").path == "/new"
    with pytest.raises(SequenceError, match="lora_path"):
        LoRARequest("none", 1)
    assert (ADAPTER.adapter_id, ADAPTER.name, ADAPTER.local_path) == (4, "adapter", "/adapter")


FINISHED = {
    SequenceStatus.FINISHED_STOPPED: "stop",
    SequenceStatus.FINISHED_LENGTH_CAPPED: "length",
    SequenceStatus.FINISHED_ABORTED: "abort",
    SequenceStatus.FINISHED_IGNORED: "length",
}


@pytest.mark.parametrize("status", SequenceStatus)
def test_status(status: SequenceStatus) -> None:
    assert SequenceStatus.is_finished(status) == (status in FINISHED)
    assert SequenceStatus.get_finished_reason(status) == FINISHED.get(status)
    seq = sequence()
    seq.status = status
    assert seq.is_finished() == (status in FINISHED)


def test_stages_are_no_integers() -> None:
    stage: Any = SequenceStage.PREFILL
    assert stage != 1
    as_int: Callable[[Any], int] = int
    with pytest.raises(TypeError):
        as_int(stage)
