"""Seconds that requests waited in the queue, by cause.

A scheduler names the cause for the head of the queue and for requests that it passes over.
Everything behind the head waits for the same thing as the head. So the state adds up the seconds of
steps by the cause that each gave for the head, and the seconds between steps, and a request's share
is the difference between the end and the beginning of its wait: O(1) per request and step. The part
of the time between steps in which the engine waited on purpose is known at the next step only; the
requests that arrived in between are then corrected. A cause
holds for the step that gave it, and not before the request arrived nor until the next step. Seconds
of steps that gave no cause are unknown. A wait for something other than a turn
(`SequenceState.engine_status`) counts under the engine's own name for it.

An engine that schedules a step before the one before has ended may announce an arrival between the
two: the causes of such a request are exact up to one step.
"""

import math

from msgspec.structs import replace

from seqtop.state.model import EngineData, RequestState
from seqtop.state.step_summary import gap_parts
from seqtop.state.wait_causes import (
    ARRIVING,
    BETWEEN_STEPS,
    IN_PROGRESS,
    OWN_TURN,
    PACED,
    head_reason,
)
from seqtop.wire.messages import Step
from seqtop.wire.snapshot import BlockedTimes, WaitTimes

MAX_CAUSES = 16
"""The most causes that are told apart for one request; an engine may invent names."""
_OTHER = "other"


def join_queue(state: EngineData, request: RequestState, time: float) -> None:
    """Begins the wait of a request that arrived at `time`, epoch seconds.

    It was too late for a step that had begun before.
    """
    late = _elapsed(time, state.blocked.until) if state.num_steps_seen else 0.0
    if late > 0:
        request.wait = _plus(request.wait, {ARRIVING: late}, late)
        time = state.blocked.until
    begin_wait(state, request, time)


def begin_wait(state: EngineData, request: RequestState, time: float) -> None:
    """Begins a wait at `time`, epoch seconds, which is not before the end of the last step."""
    blocked = state.blocked
    is_first = not state.num_steps_seen and not 0 < blocked.until < time
    if is_first and 0 < time < math.inf:
        blocked = state.blocked = replace(blocked, until=time)
    before = _with(blocked.by_cause, {BETWEEN_STEPS: _elapsed(blocked.until, time)})
    request.wait = replace(request.wait, since=time, blocked_before=before)
    update_queue(state, request)


def update_queue(state: EngineData, request: RequestState) -> None:
    """Adds a request to those that wait for their turn, or removes it, as it is now."""
    if request.wait.since is not None and _own_cause(state, request) is None:
        state.in_queue[request.request_id] = True
    else:
        state.in_queue.pop(request.request_id, None)


def end_wait(state: EngineData, request: RequestState, time: float) -> None:
    """Ends a wait at `time`, epoch seconds, if the request waits."""
    if request.wait.since is not None:
        request.wait = replace(wait_until(state, request, time), since=None, blocked_before={})
        update_queue(state, request)


def change_engine_status(state: EngineData, request: RequestState) -> None:
    """Begins a new part of a wait, as the engine's name for its cause changes in the last step."""
    if request.wait.since is not None:
        time = max(request.wait.since, state.blocked.until)
        request.wait = wait_until(state, request, time)
        begin_wait(state, request, time)


def wait_until(state: EngineData, request: RequestState, time: float) -> WaitTimes:
    """Returns the waits of a request including the present one, up to `time`, epoch seconds."""
    wait, since = request.wait, request.wait.since
    if since is None:
        return wait
    length = _elapsed(since, time)
    name = _own_cause(state, request)
    if name is not None:
        return _plus(wait, {name: length}, length)
    before = wait.blocked_before
    more = {
        cause: min(seconds - before.get(cause, 0.0), length)
        for cause, seconds in state.blocked.by_cause.items()
    }
    more[IN_PROGRESS] = min(_elapsed(state.blocked.until, time), length)
    return _plus(wait, more, length)


def advance(state: EngineData, step: Step) -> None:
    """Adds the time between the last step and the start of `step`."""
    blocked = state.blocked
    if step.start_time > blocked.until and math.isfinite(step.start_time):
        between = step.start_time - blocked.until if blocked.until > 0 else 0.0
        paced = 0.0
        if state.num_steps_seen:  # or the end of the step before is unknown
            paced = gap_parts(between, step.stats, was_idle=False)["paced"]
        by_cause = _with(blocked.by_cause, {PACED: paced, BETWEEN_STEPS: between - paced})
        if paced > 0:
            _correct_arrivals(state, blocked, paced)
        state.blocked = replace(blocked, by_cause=by_cause, until=step.start_time)


def _correct_arrivals(state: EngineData, blocked: BlockedTimes, paced: float) -> None:
    """Corrects the beginnings of waits between two steps.

    Args:
        state: The state, in which the later step is not applied yet.
        blocked: The time up to the end of the earlier step.
        paced: The seconds after it in which the engine waited on purpose.
    """
    for request in reversed(state.requests.values()):
        if request.metrics.arrival_time < blocked.until:
            break
        since = request.wait.since
        if since is not None:
            missed = _elapsed(blocked.until, since)
            more = {PACED: min(missed, paced), BETWEEN_STEPS: max(missed - paced, 0.0)}
            before = _with(blocked.by_cause, more)
            request.wait = replace(request.wait, blocked_before=before)


def block(state: EngineData, step: Step) -> None:
    """Adds the time of `step` to the cause for which the head of the queue waits since then."""
    begin, head = state.blocked.until, head_reason(step.wait_reasons)
    elapsed = _elapsed(begin, step.time)
    if elapsed <= 0:
        return
    for request_id in state.wait_reason_ids:
        request = state.requests.get(request_id)
        reason = None if request is None else request.wait_reason
        if request is not None and reason is not None and request.wait.since is not None:
            seconds = _elapsed(max(request.wait.since, begin), step.time)
            wait = replace(request.wait, named=request.wait.named + seconds)
            if _own_cause(state, request) is None:
                # Its own cause counts, and not that of the head of the queue, which is added below.
                more: dict[str, float] = {} if head is None else {head.cause: -seconds}
                if reason.cause != "unknown":
                    more[reason.cause] = more.get(reason.cause, 0.0) + seconds
                wait = replace(wait, by_cause=_with(wait.by_cause, more))
            request.wait = wait
    by_cause = state.blocked.by_cause
    if head is not None:
        by_cause = _with(by_cause, {head.cause: elapsed})
    state.blocked = replace(state.blocked, by_cause=by_cause, until=step.time)


def _own_cause(state: EngineData, request: RequestState) -> str | None:
    """Returns the engine's name for a wait that is not for a turn."""
    sequence = state.sequences.get(request.seq_ids[0]) if request.seq_ids else None
    name = "" if sequence is None else sequence.engine_status
    return None if name in OWN_TURN else name


def _plus(wait: WaitTimes, more: dict[str, float], length: float) -> WaitTimes:
    """Returns `wait` with `length` more seconds, of which those in `more` have known causes."""
    by_cause = dict(wait.by_cause)
    for cause, seconds in more.items():
        if seconds > 0:
            key = cause if cause in by_cause or len(by_cause) < MAX_CAUSES else _OTHER
            by_cause[key] = by_cause.get(key, 0.0) + seconds
    return replace(wait, total=wait.total + length, by_cause=by_cause)


def _with(by_cause: dict[str, float], more: dict[str, float]) -> dict[str, float]:
    """Returns `by_cause` with more seconds; the dictionary itself may be shared."""
    changed = {cause: by_cause.get(cause, 0.0) + more[cause] for cause in more if more[cause]}
    return {**by_cause, **changed} if changed else by_cause


def _elapsed(start: float, end: float) -> float:
    """Returns the seconds between two times; 0 if a clock cannot have measured them."""
    elapsed = end - start
    return elapsed if 0 < elapsed < math.inf else 0.0
