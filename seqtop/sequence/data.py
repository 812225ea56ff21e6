"""The tokens of one sequence and the progress of their computation."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as GenericSequence
from copy import copy
from itertools import chain, repeat

import msgspec

from seqtop.sequence.errors import SequenceError
from seqtop.sequence.privacy import Masked, Private, Public
from seqtop.sequence.status import SequenceStage
from seqtop.sequence.tensors import Tensor, concatenate
from seqtop.sequence.tokens import VLLM_TOKEN_ID_ARRAY_TYPE, TokenArray

# A global name: looking up a member of an enum class takes longer than what is done with it.
_DECODE = SequenceStage.DECODE


class SequenceDataDelta(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """Changes of a `SequenceData` since it, or its last delta, was sent.

    Attributes:
        new_output_token_ids: Tokens to append to the output.
        new_cumulative_logprob: Replaces the cumulative log probability.
        new_num_computed_tokens: Replaces the number of computed tokens.
        new_stage: Replaces the stage.
    """

    new_output_token_ids: Masked[list[int]]
    new_cumulative_logprob: Masked[float]
    new_num_computed_tokens: Public[int]
    new_stage: Public[SequenceStage]

    def new_output_token_ids_array(self) -> TokenArray:
        """Returns the new tokens as the array type of `SequenceData`.

        Raises:
            SequenceError: A token id is not an integer or too large for the array.
        """
        try:
            return array(VLLM_TOKEN_ID_ARRAY_TYPE, self.new_output_token_ids)
        except (TypeError, OverflowError) as error:
            raise SequenceError(f"a delta appends an invalid token id: {error}") from error


class SequenceData(msgspec.Struct, omit_defaults=True):
    """Prompt and output tokens of a sequence with its progress, as sent to workers.

    Create one with `from_seqs` or `from_prompt_token_counts`. Every field is encoded, including the
    caches; a receiver rebuilds the caches from the two token arrays.

    Raises:
        SequenceError: A token array has a type code other than "l".
    """

    _prompt_token_ids: Masked[TokenArray]
    # A lambda, as msgspec omits an empty value if the factory is a type.
    _output_token_ids: Masked[TokenArray] = msgspec.field(
        default_factory=lambda: array(VLLM_TOKEN_ID_ARRAY_TYPE)
    )
    _prompt_embeds: Private[Tensor | None] = None  # [prompt_len, hidden_size]
    _output_embeds: Private[Tensor | None] = None  # [output_len, hidden_size]

    _cumulative_logprob: Private[float] = 0.0
    _prompt_token_ids_tuple: Private[tuple[int, ...]] = msgspec.field(default_factory=tuple)
    _num_computed_tokens: Public[int] = 0
    _num_cached_tokens: Public[int] = 0
    _stage: Public[SequenceStage] = SequenceStage.PREFILL
    _cached_all_token_ids: Private[list[int]] = msgspec.field(default_factory=list)
    _cached_all_token_embeds: Private[Tensor | None] = None
    # Tokens appended since the last delta was taken.
    _new_appended_tokens: Private[list[int]] = msgspec.field(default_factory=list)
    _mrope_position_delta: Private[int | None] = None

    def __post_init__(self) -> None:
        for ids in (self._prompt_token_ids, self._output_token_ids):
            if ids.typecode != VLLM_TOKEN_ID_ARRAY_TYPE:
                raise SequenceError(
                    f"token ids need an array of type code {VLLM_TOKEN_ID_ARRAY_TYPE!r}, "
                    f"not {ids.typecode!r}"
                )
        self._prompt_token_ids_tuple = tuple(self._prompt_token_ids)
        self._update_cached_all_tokens()
        if self._prompt_embeds is not None:
            self._update_cached_all_token_embeds()

    @staticmethod
    def from_prompt_token_counts(*token_counts: tuple[int, int]) -> SequenceData:
        """Returns a prompt of repeated tokens, each given as ``(token_id, count)``."""
        runs = (repeat(token_id, count) for token_id, count in token_counts)
        return SequenceData.from_seqs(list(chain.from_iterable(runs)))

    @staticmethod
    def from_seqs(
        prompt_token_ids: GenericSequence[int],
        output_token_ids: GenericSequence[int] | None = None,
        *,
        prompt_embeds: Tensor | None = None,
    ) -> SequenceData:
        """Returns the data of a sequence with these prompt and output tokens.

        Output tokens given here are not part of the next delta.

        Args:
            prompt_token_ids: The token ids of the prompt.
            output_token_ids: The token ids of the output.
            prompt_embeds: Embeddings of the prompt, ``[prompt_len, hidden_size]``.
        """
        return SequenceData(
            array(VLLM_TOKEN_ID_ARRAY_TYPE, prompt_token_ids),
            array(VLLM_TOKEN_ID_ARRAY_TYPE, () if output_token_ids is None else output_token_ids),
            prompt_embeds,
        )

    def _update_cached_all_tokens(self) -> None:
        self._cached_all_token_ids = [*self._prompt_token_ids, *self._output_token_ids]

    def _update_cached_all_token_embeds(self) -> None:
        if not isinstance(self._prompt_embeds, Tensor):
            raise SequenceError("output embeddings need prompt embeddings before them")
        self._cached_all_token_embeds = (
            self._prompt_embeds
            if self._output_embeds is None
            else concatenate(self._prompt_embeds, self._output_embeds)
        )

    @property
    def cumulative_logprob(self) -> float:
        """The sum of the log probabilities of the output tokens."""
        return self._cumulative_logprob

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The token ids of the prompt."""
        return self._prompt_token_ids_tuple

    @prompt_token_ids.setter
    def prompt_token_ids(self, new_prompt_token_ids: GenericSequence[int]) -> None:
        raise NotImplementedError("a prompt cannot change once its sequence exists")

    @property
    def prompt_token_ids_array(self) -> TokenArray:
        """The token ids of the prompt: the array itself, not a copy."""
        return self._prompt_token_ids

    @property
    def output_token_ids(self) -> tuple[int, ...]:
        """The token ids of the output, as a copy."""
        return tuple(self._output_token_ids)

    @output_token_ids.setter
    def output_token_ids(self, new_output_token_ids: GenericSequence[int]) -> None:
        self._output_token_ids = array(VLLM_TOKEN_ID_ARRAY_TYPE, new_output_token_ids)
        self._update_cached_all_tokens()

    @property
    def output_token_ids_array(self) -> TokenArray:
        """The token ids of the output: the array itself, not a copy."""
        return self._output_token_ids

    @property
    def prompt_embeds(self) -> Tensor | None:
        """Embeddings of the prompt, ``[prompt_len, hidden_size]``, or None."""
        return self._prompt_embeds

    @prompt_embeds.setter
    def prompt_embeds(self, prompt_embeds: Tensor) -> None:
        self._prompt_embeds = prompt_embeds
        self._update_cached_all_token_embeds()

    @property
    def output_embeds(self) -> Tensor | None:
        """Embeddings of the output, ``[output_len, hidden_size]``, or None."""
        return self._output_embeds

    @output_embeds.setter
    def output_embeds(self, new_output_token_embeds: Tensor) -> None:
        self._output_embeds = new_output_token_embeds
        self._update_cached_all_token_embeds()

    @property
    def mrope_position_delta(self) -> int | None:
        """The offset of multimodal rotary positions from token indices; None without M-RoPE."""
        return self._mrope_position_delta

    @mrope_position_delta.setter
    def mrope_position_delta(self, new_mrope_position_delta: int | None) -> None:
        self._mrope_position_delta = new_mrope_position_delta

    @property
    def stage(self) -> SequenceStage:
        """The stage of computation: prefill or decode."""
        return self._stage

    def append_token_id(
        self, token_id: int, logprob: float, token_embed: Tensor | None = None
    ) -> None:
        """Appends a generated token, which is part of the next delta.

        Args:
            token_id: The token.
            logprob: Its log probability.
            token_embed: Its embedding, ``[hidden_size]``, in a sequence of embeddings.

        Raises:
            SequenceError: The embedding has more dimensions, or the prompt has no embeddings.
        """
        if token_embed is not None:
            self._append_token_embed(token_embed)
        self._output_token_ids.append(token_id)
        self._new_appended_tokens.append(token_id)
        self._cached_all_token_ids.append(token_id)
        self._cumulative_logprob += logprob

    def _append_token_embed(self, token_embed: Tensor) -> None:
        if token_embed.ndim != 1:
            raise SequenceError(f"a token embedding has 1 dimension, not {token_embed.ndim}")
        if self._cached_all_token_embeds is None:
            raise SequenceError("output embeddings need prompt embeddings before them")
        row = token_embed.detach().cpu().unsqueeze(0)
        self._output_embeds = (
            row if self._output_embeds is None else concatenate(self._output_embeds, row)
        )
        self._cached_all_token_embeds = concatenate(
            self._cached_all_token_embeds, row.to(self._cached_all_token_embeds.device)
        )

    def get_len(self) -> int:
        """Returns the number of prompt and output tokens."""
        return len(self._cached_all_token_ids)

    def get_prompt_len(self) -> int:
        """Returns the number of prompt tokens."""
        return len(self._prompt_token_ids)

    def get_output_len(self) -> int:
        """Returns the number of output tokens."""
        return len(self._output_token_ids)

    def get_token_ids(self) -> list[int]:
        """Returns the ids of prompt and output tokens: the list itself, not a copy."""
        return self._cached_all_token_ids

    def get_token_embeddings(self) -> Tensor | None:
        """Returns embeddings of prompt and output, ``[len, hidden_size]``, or None."""
        return self._cached_all_token_embeds

    def get_prefix_token_ids(
        self, num_tokens: int
    ) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """Returns the first `num_tokens` tokens as hashable parts of prompt and output.

        The second part is None if all of them are in the prompt.
        """
        prompt = self._prompt_token_ids_tuple
        if num_tokens <= len(prompt):
            return prompt[:num_tokens], None
        return prompt, tuple(self._output_token_ids[: num_tokens - len(prompt)])

    def get_num_computed_tokens(self) -> int:
        """Returns the number of tokens whose KV entries exist."""
        return self._num_computed_tokens

    def update_num_computed_tokens(self, num_new_computed_tokens: int) -> None:
        """Adds computed tokens; the stage becomes decode when all tokens are computed.

        Raises:
            SequenceError: There are fewer tokens. Nothing has changed.
        """
        computed = self._num_computed_tokens + num_new_computed_tokens
        num_tokens = len(self._cached_all_token_ids)
        if computed > num_tokens:
            raise SequenceError(f"{computed} computed tokens of {num_tokens}")
        self._num_computed_tokens = computed
        if computed == num_tokens:
            self._stage = _DECODE

    def get_num_cached_tokens(self) -> int:
        """Returns the number of tokens whose KV entries came from the prefix cache."""
        return self._num_cached_tokens

    def update_num_cached_tokens(self, num_cached_tokens: int) -> None:
        """Sets the number of tokens found in the prefix cache."""
        self._num_cached_tokens = num_cached_tokens

    def reset_state_for_recompute(self) -> None:
        """Resets to an uncomputed prefill and keeps the output, for preemption by recomputation."""
        self._num_computed_tokens = 0
        self._stage = SequenceStage.PREFILL
        self._new_appended_tokens = []

    def get_num_uncomputed_tokens(self) -> int:
        """Returns the number of tokens to compute, including output that is recomputed."""
        return self.get_len() - self._num_computed_tokens

    def get_last_token_id(self) -> int:
        """Returns the last output token, or the last prompt token if there is no output."""
        return (self._output_token_ids or self._prompt_token_ids)[-1]

    def get_prompt_token_ids(self) -> tuple[int, ...]:
        """Returns the token ids of the prompt."""
        return self.prompt_token_ids

    def get_output_token_ids(self) -> tuple[int, ...]:
        """Returns the token ids of the output."""
        return self.output_token_ids

    def get_delta_and_reset(self) -> SequenceDataDelta:
        """Returns the changes since the last call."""
        delta = SequenceDataDelta(  # by position, which takes half the time
            self._new_appended_tokens,
            self._cumulative_logprob,
            self._num_computed_tokens,
            self._stage,
        )
        self._new_appended_tokens = []
        return delta

    def fork(self) -> SequenceData:
        """Returns a copy, whose next delta begins where that of the original does."""
        copied = self.snapshot()
        copied._new_appended_tokens = self._new_appended_tokens.copy()
        return copied

    def snapshot(self) -> SequenceData:
        """Returns a copy; both share only what never changes, such as the prompt.

        A delta of the copy begins with what is appended to it.
        """
        copied = copy(self)  # unlike `replace`, it does not make the lists of a long prompt anew
        copied._output_token_ids = self._output_token_ids[:]
        copied._cached_all_token_ids = self._cached_all_token_ids.copy()
        copied._new_appended_tokens = []
        return copied

    def apply_delta(self, delta: SequenceDataDelta) -> None:
        """Applies a delta from the sender.

        Raises:
            SequenceError: A new token id is invalid. Nothing has changed.
        """
        self._output_token_ids.extend(delta.new_output_token_ids_array())
        self._cached_all_token_ids.extend(delta.new_output_token_ids)
        self._num_computed_tokens = delta.new_num_computed_tokens
        self._cumulative_logprob = delta.new_cumulative_logprob
        self._stage = delta.new_stage

    def __repr__(self) -> str:
        shape = getattr(self._prompt_embeds, "shape", None)
        return (
            f"SequenceData(prompt_token_ids={self._prompt_token_ids}, "
            f"prompt_embeds.shape={shape}, "
            f"output_token_ids={self.output_token_ids}, "
            f"cumulative_logprob={self.cumulative_logprob}, "
            f"get_num_computed_tokens={self.get_num_computed_tokens()})"
        )
