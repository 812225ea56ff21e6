"""Takes prompts, outputs and token ids out of what travels; numbers and lengths stay.

What is kept is listed, and everything else is blank, fields of the future among it. Token ids are
zeros, so that they can still be counted. Log-probabilities go, too: who has the model can tell the
tokens from them.
"""

from __future__ import annotations

import copy
from array import array
from functools import cache
from typing import Any, TypeVar

import msgspec

from seqtop.sequence import (
    ExecuteModelRequest,
    PoolingParams,
    SamplingParams,
    SequenceData,
    SequenceDataDelta,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
)
from seqtop.sequence.tokens import VLLM_TOKEN_ID_ARRAY_TYPE
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    Decodes,
    EngineInfo,
    EngineStopped,
    Event,
    Heartbeat,
    InFlight,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
)

S = TypeVar("S", bound=msgspec.Struct)

_SAMPLING = """
    n best_of _real_n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k
    min_p seed ignore_eos max_tokens min_tokens logprobs prompt_logprobs detokenize
    skip_special_tokens spaces_between_special_tokens include_stop_str_in_output
    truncate_prompt_tokens output_kind
"""
_POOLING = "dimensions use_cross_encoder output_kind"
_ARRIVED = "request_id arrival_time seq_ids num_prompt_tokens priority metrics engine_status"
_UPDATE = """
    seq_id status num_computed_tokens num_cached_tokens new_blocks block_table parent_seq_id
    request_id engine_status num_draft_tokens num_accepted_tokens group_block_tables is_removed
"""
_FINISHED = "request_id time status metrics seq_ids"
_EXECUTE = """
    seq_group_metadata_list blocks_to_swap_in blocks_to_swap_out blocks_to_copy virtual_engine
    num_lookahead_slots running_queue_size num_steps spec_step_idx finished_requests_ids
"""
_FULL = """
    request_id is_prompt seq_data sampling_params block_tables do_sample computed_block_nums state
    cross_block_table token_chunk_size num_speculative_tokens
"""


def redact(event: Event | InFlight) -> Event | InFlight:
    """`event` without any text or token; it is left as it is, and shares what may be shared.

    Raises:
        WireError: it is nothing of which this knows what may be said.
    """
    match event:
        case Step():
            return msgspec.structs.replace(
                event,
                execute=_execute(event.execute),
                sequences=[_update(each) for each in event.sequences],
                decodes=event.decodes and _decodes(event.decodes),
            )
        case RequestArrived():
            return _arrived(event)
        case RequestFinished():
            return keep(event, _FINISHED)
        case InFlight():
            return msgspec.structs.replace(
                event,
                requests=[_arrived(each) for each in event.requests],
                sequences=[_update(each) for each in event.sequences],
            )
        case EngineInfo():
            return msgspec.structs.replace(event, redacted=True)
        case Heartbeat() | EngineStopped():
            return event
        case _:
            raise WireError(f"{type(event).__qualname__} cannot be redacted")


def keep(struct: S, names: str) -> S:
    """A copy of `struct` in which all fields but `names` have their defaults."""
    kept = copy.copy(struct)
    for name, make in _others(type(struct), names):
        setattr(kept, name, make())
    return kept


def blank_ids(token_ids: list[int]) -> list[int]:
    return [0] * len(token_ids)


def sampling(params: SamplingParams | None) -> SamplingParams | None:
    """How to sample, without the words and tokens that it names."""
    if params is None:
        return None
    kept = keep(params, _SAMPLING)
    kept.stop, kept.stop_token_ids, kept.bad_words = [], [], []  # as construction has them
    return kept


def pooling(params: PoolingParams | None) -> PoolingParams | None:
    return params and keep(params, _POOLING)


@cache
def _others(kind: type[msgspec.Struct], names: str) -> list[tuple[str, Any]]:
    """The fields of a struct that are not among `names`, and what makes each one's default."""
    kept = names.split()
    return [
        (field.name, _maker(field))
        for field in msgspec.structs.fields(kind)
        if field.name not in kept
    ]


def _maker(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory
    return lambda: None if field.default is msgspec.NODEFAULT else field.default


def _arrived(event: RequestArrived) -> RequestArrived:
    kept = keep(event, _ARRIVED)
    kept.sampling_params = sampling(event.sampling_params)
    kept.pooling_params = pooling(event.pooling_params)
    return kept


def _update(update: SequenceUpdate) -> SequenceUpdate:
    kept = keep(update, _UPDATE)
    kept.new_token_ids = blank_ids(update.new_token_ids)
    return kept


def _decodes(decodes: Decodes) -> Decodes:
    num = len(decodes.seq_ids)
    return Decodes(
        seq_ids=decodes.seq_ids,
        new_token_ids=[0] * num,
        text_deltas=[""] * num,
        new_blocks=decodes.new_blocks,
    )


def _execute(request: ExecuteModelRequest) -> ExecuteModelRequest:
    kept = keep(request, _EXECUTE)
    kept.seq_group_metadata_list = [
        _full(each) if isinstance(each, SequenceGroupMetadata) else _delta(each)
        for each in request.seq_group_metadata_list
    ]
    return kept


def _full(group: SequenceGroupMetadata) -> SequenceGroupMetadata:
    kept = keep(group, _FULL)
    kept.seq_data = {seq_id: _data(data) for seq_id, data in group.seq_data.items()}
    kept.sampling_params = sampling(group.sampling_params)
    kept.pooling_params = pooling(group.pooling_params)
    return kept


def _data(data: SequenceData) -> SequenceData:
    kept = SequenceData(_zeros(data.get_prompt_len()), _zeros(data.get_output_len()))
    kept._num_computed_tokens = data.get_num_computed_tokens()
    kept._num_cached_tokens = data.get_num_cached_tokens()
    kept._stage = data.stage
    return kept


def _delta(group: SequenceGroupMetadataDelta) -> SequenceGroupMetadataDelta:
    return msgspec.structs.replace(
        group,
        seq_data_delta={
            seq_id: SequenceDataDelta(
                blank_ids(delta.new_output_token_ids),
                0.0,
                delta.new_num_computed_tokens,
                delta.new_stage,
            )
            for seq_id, delta in group.seq_data_delta.items()
        },
    )


def _zeros(count: int) -> array[int]:
    return array(VLLM_TOKEN_ID_ARRAY_TYPE, bytes(count * array(VLLM_TOKEN_ID_ARRAY_TYPE).itemsize))
