"""Repairs a state that has missed messages, from a list of all unfinished requests.

Afterwards the state agrees with the list on each unfinished request. Data that is not in the list
stays as it was: spans and preemptions from before the loss, and requests finished by then.
"""

from collections.abc import Iterable

from seqtop.sequence import SequenceStatus
from seqtop.state.model import EngineData, RequestState, Span, SpanKind
from seqtop.state.reducer import add_arrival, cached_by_block
from seqtop.state.sequence_updates import clear_output, remove_sequence, update_sequence
from seqtop.wire.messages import InFlight, RequestArrived


def apply(state: EngineData, event: InFlight) -> Iterable[int]:
    """Changes `state` to agree with `event`; returns the ids of the changed sequences."""
    num_output_tokens = state.num_output_tokens
    touched = _drop_finished(state, {each.request_id for each in event.requests})
    for arrival in event.requests:
        touched += _ensure_request(state, arrival)
    for update in event.sequences:
        if sequence := state.sequences.get(update.seq_id):
            num_output_tokens -= len(sequence.output_token_ids)
            clear_output(sequence)
        num_output_tokens += len(update.new_token_ids)
        update_sequence(state, update, step=event.step, time=event.time)
    for arrival in event.requests:
        _correct_request(state, state.requests[arrival.request_id], arrival, event.time)
    state.num_output_tokens = max(num_output_tokens, 0)
    state.wait_reason_ids = []
    cached = event.cached_blocks
    state.cached_blocks = None if cached is None else cached_by_block(cached)
    state.step = event.step
    state.stats = event.stats
    state.time = max(state.time, event.time)
    return touched


def _drop_finished(state: EngineData, unfinished: set[str]) -> list[int]:
    """Drops the requests that finished during the loss, because their end is unknown."""
    touched: list[int] = []
    for request in list(state.requests.values()):
        if request.finish_reason is None and request.request_id not in unfinished:
            del state.requests[request.request_id]
            for seq_id in request.seq_ids:
                state.num_by_status[state.sequences.pop(seq_id).status] -= 1
            touched += request.seq_ids
    return touched


def _ensure_request(state: EngineData, arrival: RequestArrived) -> list[int]:
    """Adds the request if it is missing; returns the ids of its sequences and of removed ones.

    Sequences forked during the loss are added by their updates.
    """
    request = state.requests.get(arrival.request_id)
    if request is None:
        add_arrival(state, arrival)
        return arrival.seq_ids
    lost = [seq_id for seq_id in request.seq_ids if seq_id not in arrival.seq_ids]
    for seq_id in lost:
        remove_sequence(state, state.sequences[seq_id])
    return [*arrival.seq_ids, *lost]


def _correct_request(
    state: EngineData, request: RequestState, arrival: RequestArrived, time: float
) -> None:
    """Sets the metrics and makes the last span agree with the status."""
    if arrival.metrics is not None:
        request.metrics = arrival.metrics
    request.wait_reason = None
    if request.finish_reason is not None or not request.seq_ids:
        return
    sequence = state.sequences[request.seq_ids[0]]
    last = request.spans[-1]
    if sequence.status is SequenceStatus.WAITING:
        if last.kind in {"prefill", "decode"}:
            request.spans.append(Span("preempted", start=last.end or time, end=None))
            state.num_queued += 1
            request.queue_turn = -state.num_queued
    elif sequence.status is SequenceStatus.RUNNING:
        is_prefill = sequence.num_computed_tokens < sequence.num_prompt_tokens
        kind: SpanKind = "prefill" if is_prefill else "decode"
        if last.end is None:
            last.end = request.metrics.first_scheduled_time if last.kind == "queued" else time
        if last.kind != kind:
            request.spans.append(Span(kind, start=last.end or time, end=time))
