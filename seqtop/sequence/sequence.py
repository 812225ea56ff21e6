"""One sequence: its tokens, its status and its generated text."""

from __future__ import annotations

import copy
from collections.abc import Sequence as GenericSequence

from seqtop.sequence.adapters import LoRARequest, PromptAdapterRequest, UsesAdapters
from seqtop.sequence.data import SequenceData
from seqtop.sequence.errors import SequenceError
from seqtop.sequence.inputs import (
    MultiModalKwargs,
    MultiModalPlaceholderDict,
    SingletonInputs,
)
from seqtop.sequence.outputs import Logprob, SampleLogprobs
from seqtop.sequence.status import LAST_UNFINISHED, SequenceStage, SequenceStatus
from seqtop.sequence.tensors import Tensor


class Sequence(UsesAdapters):
    """A prompt and the output generated from it.

    Args:
        seq_id: The id, unique among the engine's sequences.
        inputs: The prompt; see `seqtop.sequence.inputs`.
        block_size: Tokens per KV cache block.
        eos_token_id: The token that ends a sequence, if the model has one.
        lora_request: The LoRA adapter to use.
        prompt_adapter_request: The prompt adapter to use.
    """

    def __init__(
        self,
        seq_id: int,
        inputs: SingletonInputs,
        block_size: int,
        eos_token_id: int | None = None,
        lora_request: LoRARequest | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
    ) -> None:
        self.seq_id = seq_id
        self.inputs = inputs
        self.block_size = block_size
        self.eos_token_id = eos_token_id
        self.lora_request = lora_request
        self.prompt_adapter_request = prompt_adapter_request

        self.data = SequenceData.from_seqs(
            self.prompt_token_ids,
            prompt_embeds=inputs["prompt_embeds"] if inputs["type"] == "embeds" else None,
        )
        self.status = SequenceStatus.WAITING
        self.stop_reason: int | str | None = None
        self.output_logprobs: SampleLogprobs = []
        self.output_text = ""

        # The ends of the outputs that have been returned as deltas.
        self._last_output_token_ids_offset = 0
        self._last_output_text_offset = 0

        # The detokenizer's window into the tokens, and their texts (prompt and output).
        self.prefix_offset = 0
        self.read_offset = 0
        self.tokens: list[str] | None = None

    @property
    def n_blocks(self) -> int:
        """The number of KV cache blocks that all tokens need."""
        return -(-self.get_len() // self.block_size)

    @property
    def prompt(self) -> str | None:
        """The prompt's text, or None."""
        return None if self.inputs["type"] == "embeds" else self.inputs.get("prompt")

    @property
    def prompt_token_ids(self) -> list[int]:
        """The token ids of the prompt; for embeddings, one zero per row."""
        if self.inputs["type"] == "embeds":
            return [0] * len(self.inputs["prompt_embeds"])
        return self.inputs["prompt_token_ids"]

    @property
    def token_type_ids(self) -> list[int]:
        """The token type ids of the prompt; empty if not in use."""
        return [] if self.inputs["type"] == "embeds" else self.inputs.get("token_type_ids", [])

    @property
    def multi_modal_data(self) -> MultiModalKwargs:
        """Inputs of other modalities; empty if there are none."""
        if self.inputs["type"] == "multimodal":
            return self.inputs["mm_kwargs"]
        return MultiModalKwargs()

    @property
    def multi_modal_placeholders(self) -> MultiModalPlaceholderDict:
        """Placeholders of other modalities; empty if there are none."""
        return self.inputs["mm_placeholders"] if self.inputs["type"] == "multimodal" else {}

    def get_output_text_to_return(self, buffer_length: int, delta: bool) -> str:
        """Returns the output text without the last `buffer_length` characters while unfinished.

        Args:
            buffer_length: The number of characters that may be part of a stop string.
            delta: Returns only text that no earlier call with `delta` returned.
        """
        end = len(self.output_text)
        if buffer_length and not self.is_finished():
            end = max(end - buffer_length, 0)
        if not delta:
            return self.output_text[:end]
        start = self._last_output_text_offset
        if start >= end:
            return ""
        self._last_output_text_offset = end
        return self.output_text[start:end]

    def get_output_token_ids_to_return(self, delta: bool) -> GenericSequence[int] | int:
        """Returns the output tokens, or with `delta` those that no earlier such call returned.

        A delta of exactly one token is an integer, not a list.
        """
        if not delta:
            return self.get_output_token_ids()
        output_len = self.get_output_len()
        num_new = output_len - self._last_output_token_ids_offset
        self._last_output_token_ids_offset = output_len
        if num_new == 0:
            return []
        if num_new == 1:
            return self.data.get_token_ids()[-1]
        return self.data.get_token_ids()[-num_new:]

    def hash_of_block(self, logical_idx: int) -> int:
        """Returns the hash of all tokens up to the end of a block, and of the LoRA adapter."""
        num_tokens = self.num_hashed_tokens_of_block(logical_idx)
        return hash((self.data.get_prefix_token_ids(num_tokens), self.lora_int_id))

    def extra_hash(self) -> int | None:
        """Returns the hash of the adapters, which affect KV entries too; None without any."""
        adapters = (self.prompt_adapter_id, self.lora_int_id)
        return hash(adapters) if any(adapters) else None

    def num_hashed_tokens_of_block(self, logical_idx: int) -> int:
        """Returns the number of tokens up to the end of a block."""
        return (logical_idx + 1) * self.block_size

    def reset_state_for_recompute(self) -> None:
        """Resets to an uncomputed prefill and keeps the output."""
        self.data.reset_state_for_recompute()

    def append_token_id(
        self, token_id: int, logprobs: dict[int, Logprob], token_embed: Tensor | None = None
    ) -> None:
        """Appends a generated token.

        Args:
            token_id: The token.
            logprobs: Candidates by token id, including the token itself.
            token_embed: Its embedding, ``[hidden_size]``, in a sequence of embeddings.

        Raises:
            SequenceError: `logprobs` lacks the token, or the embedding does not fit.
        """
        if token_id not in logprobs:
            raise SequenceError(f"token {token_id} has no log probability among those given")
        self.data.append_token_id(token_id, logprobs[token_id].logprob, token_embed)
        self.output_logprobs.append(logprobs)

    def get_len(self) -> int:
        """Returns the number of prompt and output tokens."""
        return self.data.get_len()

    def get_prompt_len(self) -> int:
        """Returns the number of prompt tokens."""
        return self.data.get_prompt_len()

    def get_output_len(self) -> int:
        """Returns the number of output tokens."""
        return self.data.get_output_len()

    def get_token_ids(self) -> list[int]:
        """Returns the ids of prompt and output tokens: the list itself, not a copy."""
        return self.data.get_token_ids()

    def get_prompt_token_ids(self) -> tuple[int, ...]:
        """Returns the token ids of the prompt."""
        return self.data.get_prompt_token_ids()

    def get_last_token_id(self) -> int:
        """Returns the id of the last output token, or of the last prompt token."""
        return self.data.get_last_token_id()

    def get_output_token_ids(self) -> tuple[int, ...]:
        """Returns the token ids of the output."""
        return self.data.get_output_token_ids()

    def get_cumulative_logprob(self) -> float:
        """Returns the sum of the log probabilities of the output tokens."""
        return self.data.cumulative_logprob

    def is_finished(self) -> bool:
        """Returns whether the status is a finished one."""
        return self.status > LAST_UNFINISHED

    def fork(self, new_seq_id: int) -> Sequence:
        """Returns a copy with another id, which advances independently.

        Both share what does not change: the prompt, and the log probabilities of common tokens.
        """
        child = copy.copy(self)
        child.seq_id = new_seq_id
        child.data = self.data.fork()
        child.output_logprobs = self.output_logprobs.copy()
        child.tokens = None if self.tokens is None else self.tokens.copy()
        return child

    def get_num_new_tokens(self) -> int:
        """Returns the most tokens of the next step: 1 in decode, all uncomputed ones in prefill."""
        return 1 if not self.is_prefill() else self.data.get_num_uncomputed_tokens()

    def get_num_computed_tokens(self) -> int:
        """Returns the number of tokens whose KV entries exist."""
        return self.data.get_num_computed_tokens()

    def is_prefill(self) -> bool:
        """Returns whether the sequence is in prefill."""
        return self.data.stage is SequenceStage.PREFILL

    def __repr__(self) -> str:
        return (
            f"Sequence(seq_id={self.seq_id}, status={self.status.name}, num_blocks={self.n_blocks})"
        )
