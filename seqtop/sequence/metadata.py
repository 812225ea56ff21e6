"""Metadata of scheduled sequence groups for workers: in full once, then as deltas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from seqtop.sequence.adapters import LoRARequest, PromptAdapterRequest, UsesAdapters
from seqtop.sequence.data import SequenceData, SequenceDataDelta
from seqtop.sequence.errors import SequenceError
from seqtop.sequence.inputs import MultiModalKwargs, MultiModalPlaceholderDict
from seqtop.sequence.names import Name
from seqtop.sequence.params import PoolingParams, SamplingParams
from seqtop.sequence.privacy import Private, Public


class SequenceGroupState(msgspec.Struct, omit_defaults=True):
    """The progress of a sequence group in a multi-step run."""

    num_steps: Public[int] = 1
    current_step: Public[int] = 0

    @property
    def remaining_steps(self) -> int:
        """Steps of the run that are left."""
        return self.num_steps - self.current_step


class SequenceGroupMetadataDelta(
    msgspec.Struct, tag=True, array_like=True, omit_defaults=True, gc=False
):
    """Changes of a sequence group that the worker has in full.

    Attributes:
        seq_data_delta: The changes of each sequence, by sequence id.
        block_tables: The whole block table of each sequence, by sequence id.
        computed_block_nums: Sent but not applied.
        state: Sent but not applied.
    """

    seq_data_delta: Public[dict[int, SequenceDataDelta]]
    request_id: Public[Name]
    block_tables: Public[dict[int, list[int]]]
    is_prompt: Public[bool]
    do_sample: Public[bool] = True
    token_chunk_size: Public[int | None] = None
    computed_block_nums: Public[list[int] | None] = None
    state: Public[SequenceGroupState | None] = msgspec.field(default_factory=SequenceGroupState)


class SequenceGroupMetadata(
    UsesAdapters, msgspec.Struct, tag=True, array_like=True, omit_defaults=True
):
    """A scheduled sequence group in full.

    Attributes:
        request_id: The request's id.
        is_prompt: Whether this step computes the prompt (or recomputes it with the output).
        seq_data: The sequences, by sequence id.
        sampling_params: Parameters of sampling.
        block_tables: Physical KV block numbers in logical order, by sequence id.
        do_sample: Whether this step samples a token; all but the last chunk of a prefill do not.
        computed_block_nums: Blocks found in the prefix cache; None if the cache is not in use.
        state: Progress of a multi-step run.
        multi_modal_data: Model inputs of other modalities.
        multi_modal_placeholders: Their positions in the prompt.
        encoder_seq_data: The encoder's sequence in an encoder-decoder model.
        cross_block_table: The encoder's KV blocks.
        token_chunk_size: Tokens of each sequence to compute in this step. If None, construction
            sets all tokens of the first sequence for a prompt, else 1.
        num_speculative_tokens: Drafted tokens; None without speculative decoding, 0 while off.

    Raises:
        SequenceError: A prompt has neither sequences nor a `token_chunk_size`.
    """

    request_id: Public[Name]
    is_prompt: Public[bool]
    seq_data: Public[dict[int, SequenceData]]
    sampling_params: Public[SamplingParams | None]
    block_tables: Public[dict[int, list[int]]]
    do_sample: Public[bool] = True
    pooling_params: Public[PoolingParams | None] = None
    lora_request: Private[LoRARequest | None] = None
    computed_block_nums: Public[list[int] | None] = None
    state: Public[SequenceGroupState | None] = msgspec.field(default_factory=SequenceGroupState)
    token_type_ids: Private[list[int] | None] = None
    multi_modal_data: Private[MultiModalKwargs | None] = None
    multi_modal_placeholders: Private[MultiModalPlaceholderDict | None] = None
    encoder_seq_data: Private[SequenceData | None] = None
    cross_block_table: Public[list[int] | None] = None
    prompt_adapter_request: Private[PromptAdapterRequest | None] = None
    token_chunk_size: Public[int | None] = None
    num_speculative_tokens: Public[int | None] = None

    def __post_init__(self) -> None:
        if self.token_chunk_size is None and self.seq_data is not None:
            self.token_chunk_size = self._first_len() if self.is_prompt else 1

    def _first_len(self) -> int:
        for data in self.seq_data.values():
            return data.get_len()
        raise SequenceError(f"prompt {self.request_id!r} has neither sequences nor a chunk size")

    @property
    def prompt_adapter_num_virtual_tokens(self) -> int:
        """Virtual tokens of the prompt adapter; 0 without one."""
        adapter = self.prompt_adapter_request
        return adapter.prompt_adapter_num_virtual_tokens if adapter else 0

    @property
    def is_single_step_prompt(self) -> bool:
        """True if this step completes the prompt, and therefore samples."""
        return self.is_prompt and self.do_sample

    def get_first_seq_id(self) -> int:
        """Returns the id of the first sequence."""
        return next(iter(self.seq_data))

    def apply_delta(self, sequence_group_metadata_delta: SequenceGroupMetadataDelta) -> None:
        """Applies a delta from the sender.

        `computed_block_nums` and `state` keep their values; a `token_chunk_size` of None
        replaces the one here.

        Raises:
            SequenceError: The delta belongs to another request, changes an unknown sequence or
                appends an invalid token id. Nothing has changed.
        """
        delta = sequence_group_metadata_delta
        if delta.request_id != self.request_id:
            raise SequenceError(
                f"a delta of request {delta.request_id!r} cannot change {self.request_id!r}"
            )
        if not delta.seq_data_delta.keys() <= self.seq_data.keys():
            unknown = min(delta.seq_data_delta.keys() - self.seq_data.keys())
            raise SequenceError(f"request {self.request_id!r} has no sequence {unknown}")
        if len(delta.seq_data_delta) > 1:
            for change in delta.seq_data_delta.values():
                change.new_output_token_ids_array()  # raises before any sequence has changed
        for seq_id, change in delta.seq_data_delta.items():
            self.seq_data[seq_id].apply_delta(change)
        self.block_tables = delta.block_tables
        self.token_chunk_size = delta.token_chunk_size
        self.do_sample = delta.do_sample
        self.is_prompt = delta.is_prompt

    def finish_step(self) -> None:
        """Counts a finished step of a multi-step run.

        Raises:
            SequenceError: The run has ended, or there is none.
        """
        if self.state is None or self.state.remaining_steps <= 0:
            raise SequenceError(f"request {self.request_id!r} has no step left in {self.state}")
        self.state.current_step += 1


SequenceGroupMetadataLike: TypeAlias = SequenceGroupMetadata | SequenceGroupMetadataDelta
"""A scheduled group in full or as a delta."""


def get_all_seq_ids(seq_group_metadata_list: Iterable[SequenceGroupMetadata]) -> list[int]:
    """Returns the ids of all sequences of these groups, in order."""
    return [seq_id for group in seq_group_metadata_list for seq_id in group.seq_data]


def get_all_seq_ids_and_request_ids(
    seq_group_metadata_list: Iterable[SequenceGroupMetadata],
) -> tuple[list[int], dict[str, set[int]]]:
    """Returns the ids of all sequences of these groups, in order, and by request id."""
    seq_ids: list[int] = []
    by_request: defaultdict[str, set[int]] = defaultdict(set)
    for group in seq_group_metadata_list:
        seq_ids.extend(group.seq_data)
        by_request[group.request_id].update(group.seq_data)
    return seq_ids, by_request
