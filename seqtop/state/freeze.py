"""A still of a state that goes on changing: what a paused viewer looks at."""

import copy

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import RequestState, SequenceState, Span


def freeze(state: EngineState) -> EngineState:
    """A copy that later events do not reach.

    What is finished changes no more and is shared with `state`, so the cost is that of what is
    in flight, and one copy of each index.
    """
    taken = copy.copy(state)
    taken.requests = dict(state.requests)
    taken.sequences = dict(state.sequences)
    taken.finished = list(state.finished)
    taken.num_by_status = list(state.num_by_status)
    taken.cached_blocks = None if state.cached_blocks is None else dict(state.cached_blocks)
    for seq_id, sequence in state.sequences.items():
        if not SequenceStatus.is_finished(sequence.status):
            taken.sequences[seq_id] = _sequence(sequence)
    for request_id, request in state.requests.items():
        if request.finish_reason is None:
            taken.requests[request_id] = _request(request)
    return taken


def _sequence(sequence: SequenceState) -> SequenceState:
    taken = copy.copy(sequence)
    taken.output_token_ids = sequence.output_token_ids.copy()
    taken.output_logprobs = sequence.output_logprobs.copy()
    taken.text_lengths = sequence.text_lengths.copy()
    taken.top_logprobs = dict(sequence.top_logprobs)
    taken.block_table = list(sequence.block_table)
    return taken


def _request(request: RequestState) -> RequestState:
    taken = copy.copy(request)
    taken.metrics = copy.copy(request.metrics)
    taken.seq_ids = list(request.seq_ids)
    taken.preemption_steps = list(request.preemption_steps)
    # Only the newest span still changes.
    taken.spans = [*request.spans[:-1], *(_span(span) for span in request.spans[-1:])]
    return taken


def _span(span: Span) -> Span:
    return copy.copy(span)
