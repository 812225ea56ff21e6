"""Seconds that requests waited in the queue, by cause.

A scheduler names the cause for the head of the queue and for requests that it passes over.
Everything behind the head waits for the same thing as the head. So the state adds up the seconds by
the cause that each step gave for the head, and a request's share is the difference between the end
and the beginning of its wait: O(1) per request and step. A cause holds from the start of the step
that gave it to the start of the next one, and not before the request arrived: the time between two
steps belongs to what a request waits for, and only those that run are delayed by the host, or by
the engine's pace. Seconds of steps that gave no cause are unknown. A wait for something other than
a turn (`SequenceState.engine_status`) counts under the engine's own name for it.

An engine that schedules a step before the one before has ended may announce an arrival between the
two: the causes of such a request are exact up to one step.
"""

import math

from msgspec.structs import replace

from seqtop.state.model import EngineData, RequestState
from seqtop.state.wait_causes import (
    ARRIVING,
    BETWEEN_STEPS,
    IN_PROGRESS,
    OWN_TURN,
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
    between = _elapsed(blocked.until, time)
    request.wait = replace(
        request.wait,
        since=time,
        blocked_before=_with(blocked.by_cause, {_cause_between(blocked): between}),
        between_before=blocked.between + between,
    )
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
    between = min(max(state.blocked.between - wait.between_before, 0.0), length)
    wait = replace(wait, between=wait.between + between)
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
    """Adds the time between the last step and the start of `step` to the cause of the last step."""
    blocked = state.blocked
    if step.start_time > blocked.until and math.isfinite(step.start_time):
        between = step.start_time - blocked.until if blocked.until > 0 else 0.0
        cause = _cause_between(blocked)
        _correct_named(state, cause, step.start_time)
        state.blocked = replace(
            blocked,
            by_cause=_with(blocked.by_cause, {cause: between}),
            until=step.start_time,
            between=blocked.between + between,
        )


def block(state: EngineData, step: Step) -> None:
    """Adds the time of `step` to the cause for which the head of the queue waits since then."""
    blocked, head = state.blocked, head_reason(step.wait_reasons)
    cause = "" if head is None else head.cause
    elapsed = _elapsed(blocked.until, step.time)
    if elapsed > 0:
        _correct_named(state, cause, step.time)
        by_cause = _with(blocked.by_cause, {cause: elapsed}) if cause else blocked.by_cause
        blocked = replace(blocked, by_cause=by_cause, until=step.time)
    state.blocked = replace(blocked, cause=cause)


def _cause_between(blocked: BlockedTimes) -> str:
    """Returns the cause of the time after the last step, up to the next one.

    Whoever waits for blocks waits for them between the steps, too: the host and the engine's pace
    delay only those that run.
    """
    return blocked.cause or BETWEEN_STEPS


def _correct_named(state: EngineData, cause: str, end: float) -> None:
    """Adds time to the waits of requests whose own reasons the scheduler gave.

    Args:
        state: The state, with these reasons.
        cause: The cause that is added for all of the queue, which is not theirs; empty for none.
        end: The end of the time, epoch seconds; it begins where that of `state.blocked` ends.
    """
    for request_id in state.wait_reason_ids:
        request = state.requests.get(request_id)
        reason = None if request is None else request.wait_reason
        if request is not None and reason is not None and request.wait.since is not None:
            seconds = _elapsed(max(request.wait.since, state.blocked.until), end)
            wait = replace(request.wait, named=request.wait.named + seconds)
            if _own_cause(state, request) is None:
                more: dict[str, float] = {cause: -seconds} if cause else {}
                if reason.cause != "unknown":
                    more[reason.cause] = more.get(reason.cause, 0.0) + seconds
                wait = replace(wait, by_cause=_with(wait.by_cause, more))
            request.wait = wait


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
