"""A whole state without texts and tokens, for a viewer that is to keep none of them."""

from __future__ import annotations

import msgspec

from seqtop.state import EngineState
from seqtop.state.model import RequestState, SequenceState
from seqtop.wire import redaction
from seqtop.wire.columns import Ints

_REQUEST = """
    request_id metrics seq_ids num_prompt_tokens priority spans token_chunk_size num_scheduled_steps
    num_preemptions num_lost_tokens last_preemption_mode preempted_for wait_reason finish_reason
    preemption_steps queue_turn
"""
_SEQUENCE = """
    seq_id request_id status num_prompt_tokens num_computed_tokens num_cached_tokens block_table
    parent_seq_id last_step engine_status num_draft_tokens num_accepted_tokens group_block_tables
    host_table fork_length
"""


def redacted(state: EngineState) -> EngineState:
    """A copy of `state` that names no word and no token; it shares what may be shared."""
    info = state.info and msgspec.structs.replace(state.info, redacted=True)
    return msgspec.structs.replace(
        state,
        info=info,
        requests={name: _request(each) for name, each in state.requests.items()},
        sequences={number: _sequence(each) for number, each in state.sequences.items()},
    )


def _request(request: RequestState) -> RequestState:
    kept = redaction.keep(request, _REQUEST)
    kept.sampling_params = redaction.sampling(request.sampling_params)
    kept.pooling_params = redaction.pooling(request.pooling_params)
    return kept


def _sequence(sequence: SequenceState) -> SequenceState:
    kept = redaction.keep(sequence, _SEQUENCE)
    zeros = [0] * len(sequence.output_token_ids)
    kept.output_token_ids = Ints.of(zeros)
    kept.text_lengths = Ints("b").plus(zeros)  # which would tell one from another
    return kept
