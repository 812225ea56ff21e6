"""The sequences of one request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqtop.sequence.adapters import LoRARequest, PromptAdapterRequest, UsesAdapters
from seqtop.sequence.errors import SequenceError
from seqtop.sequence.inputs import MultiModalKwargs, MultiModalPlaceholderDict
from seqtop.sequence.metadata import SequenceGroupState
from seqtop.sequence.metrics import RequestMetrics
from seqtop.sequence.outputs import PromptLogprobs
from seqtop.sequence.params import PoolingParams, SamplingParams
from seqtop.sequence.sequence import Sequence
from seqtop.sequence.status import SequenceStage, SequenceStatus
from seqtop.sequence.tensors import Tensor

# A global name: looking up a member of an enum class takes longer than the comparison.
_PREFILL = SequenceStage.PREFILL


class SequenceGroup(UsesAdapters):
    """Sequences generated from one prompt, with the request they answer.

    Args:
        request_id: The id, unique among the engine's requests.
        seqs: The sequences, at least one.
        arrival_time: The time of arrival, in epoch seconds.
        sampling_params: Parameters of generation, if the request generates.
        lora_request: The LoRA adapter.
        pooling_params: Parameters of pooling, if the request pools.
        pooled_data: The output of a pooling model.
        encoder_seq: The encoder's sequence in an encoder-decoder model.
        trace_headers: OpenTelemetry headers.
        prompt_adapter_request: The prompt adapter.
        priority: The priority; smaller values are scheduled first.
        draft_size: The most tokens per step: drafted ones and the target model's own.
    """

    def __init__(
        self,
        request_id: str,
        seqs: list[Sequence],
        arrival_time: float,
        sampling_params: SamplingParams | None = None,
        lora_request: LoRARequest | None = None,
        pooling_params: PoolingParams | None = None,
        pooled_data: Tensor | None = None,
        encoder_seq: Sequence | None = None,
        trace_headers: Mapping[str, str] | None = None,
        prompt_adapter_request: PromptAdapterRequest | None = None,
        priority: int = 0,
        draft_size: int = 1,
    ) -> None:
        self.request_id = request_id
        self.seqs = seqs
        self.first_seq = seqs[0]
        self.is_single_seq = len(seqs) == 1
        self.seqs_dict = {seq.seq_id: seq for seq in seqs}
        self.arrival_time = arrival_time
        self.sampling_params = sampling_params
        self.lora_request = lora_request
        self.pooling_params = pooling_params
        self.pooled_data = pooled_data
        self.encoder_seq = encoder_seq
        self.trace_headers = trace_headers
        self.prompt_adapter_request = prompt_adapter_request
        self.priority = priority

        self.metrics = RequestMetrics(
            arrival_time=arrival_time,
            last_token_time=arrival_time,
            first_scheduled_time=None,
            first_token_time=None,
            time_in_queue=None,
            spec_token_acceptance_counts=[0] * draft_size,
        )
        self.last_token_latency = 0.0
        self.state = SequenceGroupState()
        self.prompt_logprobs: PromptLogprobs | None = None
        self.cached_request_output: Any = None

    @property
    def prompt(self) -> str | None:
        """The prompt's text, or None."""
        return self.first_seq.prompt

    @property
    def prompt_token_ids(self) -> list[int]:
        """The token ids of the prompt."""
        return self.first_seq.prompt_token_ids

    @property
    def encoder_prompt(self) -> str | None:
        """The text of the encoder's prompt, or None."""
        return self.encoder_seq.prompt if self.encoder_seq is not None else None

    @property
    def encoder_prompt_token_ids(self) -> list[int] | None:
        """The token ids of the encoder's prompt, or None."""
        return self.encoder_seq.prompt_token_ids if self.encoder_seq is not None else None

    @property
    def token_type_ids(self) -> list[int] | None:
        """The token type ids of the prompt; empty if not in use."""
        return self.first_seq.token_type_ids

    @property
    def multi_modal_data(self) -> MultiModalKwargs:
        """Inputs of other modalities of the decoder or, if it has none, of the encoder."""
        if self.first_seq.multi_modal_data or self.encoder_seq is None:
            return self.first_seq.multi_modal_data
        return self.encoder_seq.multi_modal_data

    @property
    def multi_modal_placeholders(self) -> MultiModalPlaceholderDict:
        """Placeholders for `multi_modal_data`, from the same sequence."""
        if self.first_seq.multi_modal_data:
            return self.first_seq.multi_modal_placeholders
        return self.encoder_seq.multi_modal_placeholders if self.encoder_seq is not None else {}

    @property
    def prompt_adapter_num_virtual_tokens(self) -> int:
        """Virtual tokens of the prompt adapter; 0 without one."""
        adapter = self.prompt_adapter_request
        return adapter.prompt_adapter_num_virtual_tokens if adapter else 0

    def init_multi_step(self, num_steps: int) -> None:
        """Starts a run of `num_steps` steps without rescheduling."""
        self.state.num_steps = num_steps
        self.state.current_step = 0

    def init_multi_step_from_lookahead_slots(
        self,
        num_lookahead_slots: int,
        num_scheduler_steps: int,
        is_multi_step: bool,
        enable_chunking: bool,
    ) -> None:
        """Starts a run whose length follows from the reserved lookahead slots.

        Raises:
            SequenceError: The slots do not match the steps: a chunked prefill has one slot per
                step, another prefill none, a decode one fewer than steps.
        """
        if not is_multi_step:
            self.init_multi_step(num_scheduler_steps)
            return
        prefill = self.is_prefill()
        if prefill and enable_chunking:
            expected, num_steps = num_scheduler_steps, num_lookahead_slots
        else:
            expected = 0 if prefill else num_scheduler_steps - 1
            num_steps = num_lookahead_slots + 1
        if num_lookahead_slots != expected:
            raise SequenceError(f"{num_lookahead_slots} lookahead slots instead of {expected}")
        self.init_multi_step(num_steps)

    def set_last_token_time(self, now: float) -> None:
        """Records the time and the latency of a token generated at `now`, in epoch seconds.

        Raises:
            SequenceError: The group is in prefill: no token has been generated.
        """
        if self.first_seq.data.stage is _PREFILL:
            self._require_decode()
        self.last_token_latency = now - self.metrics.last_token_time
        self.metrics.last_token_time = now

    def get_last_token_latency(self) -> float:
        """Returns the seconds between the last two tokens.

        Raises:
            SequenceError: The group is in prefill: no token has been generated.
        """
        self._require_decode()
        return self.last_token_latency

    def _require_decode(self) -> None:
        if self.is_prefill():
            raise SequenceError(f"request {self.request_id!r} is in prefill: no token to time")

    def maybe_set_first_token_time(self, time: float) -> None:
        """Records the time of the first token, once; recomputation does not change it."""
        if self.metrics.first_token_time is None and self.first_seq.get_output_len() == 1:
            self.metrics.first_token_time = time

    def maybe_set_first_scheduled_time(self, time: float) -> None:
        """Records the time of the first scheduling, once, and the time in queue."""
        if self.metrics.first_scheduled_time is None:
            self.metrics.first_scheduled_time = time
            self.metrics.time_in_queue = time - self.metrics.arrival_time

    def set_finished_time(self, time: float | None) -> None:
        """Records the time at which the request finished, in epoch seconds."""
        self.metrics.finished_time = time

    def get_max_num_running_seqs(self) -> int:
        """Returns the most sequences that can run at once: the number of unfinished ones."""
        return self.num_seqs() - self.num_finished_seqs()

    def get_seqs(self, status: SequenceStatus | None = None) -> list[Sequence]:
        """Returns all sequences, or those of a status."""
        if status is None:
            return self.seqs
        return [seq for seq in self.seqs if seq.status == status]

    def is_encoder_decoder(self) -> bool:
        """Returns whether there is an encoder sequence."""
        return self.encoder_seq is not None

    def get_encoder_seq(self) -> Sequence | None:
        """Returns the encoder sequence, or None."""
        return self.encoder_seq

    def get_finished_seqs(self) -> list[Sequence]:
        """Returns the finished sequences."""
        return [seq for seq in self.seqs if seq.is_finished()]

    def update_num_computed_tokens(self, num_new_computed_tokens: int) -> None:
        """Adds computed tokens to every unfinished sequence."""
        for seq in self.seqs:
            if not seq.is_finished():
                seq.data.update_num_computed_tokens(num_new_computed_tokens)

    def get_num_uncomputed_tokens(self) -> int:
        """Returns the number of tokens to compute, summed over unfinished sequences."""
        return sum(
            seq.data.get_num_uncomputed_tokens() for seq in self.seqs if not seq.is_finished()
        )

    def num_seqs(self, status: SequenceStatus | None = None) -> int:
        """Returns the number of sequences, or of those of a status."""
        return len(self.get_seqs(status))

    def num_finished_seqs(self) -> int:
        """Returns the number of finished sequences."""
        return len(self.get_finished_seqs())

    def is_finished(self) -> bool:
        """Returns whether all sequences are finished."""
        return all(seq.is_finished() for seq in self.seqs)

    def is_prefill(self) -> bool:
        """Returns whether the first sequence, and so the group, is in prefill."""
        return self.first_seq.is_prefill()

    def uses_prompt_embeds(self) -> bool:
        """Returns whether any sequence has a prompt of embeddings."""
        return any(seq.data.prompt_embeds is not None for seq in self.seqs)

    def __repr__(self) -> str:
        return (
            f"SequenceGroup(request_id={self.request_id}, "
            f"sampling_params={self.sampling_params}, "
            f"num_seqs={len(self.seqs)})"
        )
