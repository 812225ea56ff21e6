"""`Sequence`."""

from typing import Any

import pytest
import torch

from seqtop.sequence import (
    Logprob,
    LoRARequest,
    PromptAdapterRequest,
    Sequence,
    SequenceError,
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


def test_a_token_without_its_logprob_is_refused_whole() -> None:
    seq = sequence()
    with pytest.raises(SequenceError, match="token 7"):
        seq.append_token_id(7, {8: Logprob(-0.5)})
    assert (seq.get_output_len(), seq.output_logprobs) == (0, [])


def test_a_generated_token_has_its_embedding() -> None:
    seq = Sequence(0, embeds_inputs(torch.zeros(2, 4)), 4)
    seq.append_token_id(7, {7: Logprob(-0.5)}, torch.ones(4))
    assert seq.data.get_token_embeddings().tolist() == [[0.0] * 4, [0.0] * 4, [1.0] * 4]


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
    assert (len(seq.output_logprobs), len(fork.output_logprobs)) == (1, 2)
    deltas = [own.data.get_delta_and_reset().new_output_token_ids for own in (seq, fork)]
    assert deltas == [[7], [7, 8]]
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
