"""Makes a state good again that has missed messages, by a list of everything unfinished.

Afterwards the state says of each unfinished request what the list says. What the list cannot know
stays as it was: spans and preemptions from before the loss, and requests that had ended by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from seqtop.sequence import SequenceStatus
from seqtop.state import reducer
from seqtop.state.model import RequestState, Span, SpanKind
from seqtop.wire.columns import Floats, Ints
from seqtop.wire.messages import InFlight, RequestArrived

if TYPE_CHECKING:
    from seqtop.state import EngineState


def apply(state: EngineState, event: InFlight) -> Iterable[int]:
    """Change `state` to what `event` says; return the ids of the sequences concerned."""
    num_output_tokens = state.num_output_tokens
    touched = _forget_ended(state, {each.request_id for each in event.requests})
    for arrival in event.requests:
        touched += _announce(state, arrival)
    for update in event.sequences:
        if sequence := state.sequences.get(update.seq_id):
            num_output_tokens -= len(sequence.output_token_ids)
            sequence.output_token_ids, sequence.output_logprobs = Ints("i"), Floats("f")
            sequence.top_logprobs, sequence.cumulative_logprob = {}, 0.0
            sequence.text, sequence.last_delta_length, sequence.text_lengths = "", 0, Ints("b")
        num_output_tokens += len(update.new_token_ids)
        reducer.update_sequence(state, update, step=event.step, time=event.time)
    for arrival in event.requests:
        _settle(state, state.requests[arrival.request_id], arrival, event.time)
    state.num_output_tokens = max(num_output_tokens, 0)
    state.told_to_wait = []
    known = event.cached_blocks
    state.cached_blocks = None if known is None else reducer.by_block(known)
    state.step = event.step
    state.stats = event.stats
    state.time = max(state.time, event.time)
    return touched


def _forget_ended(state: EngineState, unfinished: set[str]) -> list[int]:
    """Drop what has ended unseen: how, and with what text, nobody can tell any more."""
    touched: list[int] = []
    for request in list(state.requests.values()):
        if request.finish_reason is None and request.request_id not in unfinished:
            del state.requests[request.request_id]
            for seq_id in request.seq_ids:
                state.num_by_status[state.sequences.pop(seq_id).status] -= 1
            touched += request.seq_ids
    return touched


def _announce(state: EngineState, arrival: RequestArrived) -> list[int]:
    """Make sure that there is such a request; returns the ids of its sequences, and of lost ones.

    Sequences that were forked meanwhile are made by their updates.
    """
    request = state.requests.get(arrival.request_id)
    if request is None:
        reducer.arrived(state, arrival)
        return arrival.seq_ids
    lost = [seq_id for seq_id in request.seq_ids if seq_id not in arrival.seq_ids]
    for seq_id in lost:
        reducer.remove_sequence(state, state.sequences[seq_id])
    return [*arrival.seq_ids, *lost]


def _settle(
    state: EngineState, request: RequestState, arrival: RequestArrived, time: float
) -> None:
    """Take over the metrics, and let the last span be one that fits the status."""
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
