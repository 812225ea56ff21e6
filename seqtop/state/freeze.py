"""Copies of a changing state, for a paused viewer."""

import copy

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import RequestState, SequenceState


def freeze(state: EngineState) -> EngineState:
    """Returns a copy of `state` that later events do not change.

    Finished requests are shared with `state`, so the cost is proportional to the unfinished
    requests, plus one copy of each dictionary.
    """
    frozen = copy.copy(state)
    frozen.requests = dict(state.requests)
    frozen.sequences = dict(state.sequences)
    frozen.finished = list(state.finished)
    frozen.holders, frozen.in_queue = dict(state.holders), dict(state.in_queue)
    frozen.num_by_status = list(state.num_by_status)
    frozen.cached_blocks = None if state.cached_blocks is None else dict(state.cached_blocks)
    for seq_id, sequence in state.sequences.items():
        if not SequenceStatus.is_finished(sequence.status):
            frozen.sequences[seq_id] = _sequence(sequence)
    for request_id, request in state.requests.items():
        if request.finish_reason is None:
            frozen.requests[request_id] = _request(request)
    return frozen


def _sequence(sequence: SequenceState) -> SequenceState:
    frozen = copy.copy(sequence)
    frozen.output_token_ids = sequence.output_token_ids.copy()
    frozen.output_logprobs = sequence.output_logprobs.copy()
    frozen.text_lengths = sequence.text_lengths.copy()
    frozen.block_table = sequence.block_table.copy()
    if sequence.top_logprobs is not None:
        frozen.top_logprobs = sequence.top_logprobs.copy()
    return frozen


def _request(request: RequestState) -> RequestState:
    frozen = copy.copy(request)
    frozen.metrics = copy.copy(request.metrics)
    frozen.seq_ids = list(request.seq_ids)
    frozen.preemption_steps = list(request.preemption_steps)
    # Only the newest span still changes.
    frozen.spans = [*request.spans[:-1], *map(copy.copy, request.spans[-1:])]
    return frozen
