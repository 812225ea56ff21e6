"""Seconds that requests waited in the queue, by cause.

A scheduler names the cause for the head of the queue and for requests that it passes over.
Everything behind the head waits for the same thing as the head. So the state adds up the seconds in
which the head was blocked, by cause, and a request's share is the difference between the end and
the beginning of its wait: O(1) per request and step. Seconds in which the scheduler gave no cause
are unknown. A wait for something other than a turn (`SequenceState.engine_status`) counts under the
engine's own name for it.
"""

import math

from msgspec.structs import replace

from seqtop.state.model import EngineData, RequestState
from seqtop.state.wait_causes import OWN_TURN, head_reason
from seqtop.wire.messages import Step
from seqtop.wire.snapshot import WaitTimes

MAX_CAUSES = 16
"""The most causes that are told apart for one request; an engine may invent names."""
_OTHER = "other"


def begin_wait(state: EngineData, request: RequestState, time: float) -> None:
    """Begins a wait at `time`, epoch seconds."""
    before = _blocked_until(state, time)
    request.wait = replace(request.wait, since=time, blocked_before=before)


def end_wait(state: EngineData, request: RequestState, time: float) -> None:
    """Ends a wait at `time`, epoch seconds, if the request waits."""
    if request.wait.since is not None:
        request.wait = replace(wait_until(state, request, time), since=None, blocked_before={})


def change_engine_status(state: EngineData, request: RequestState) -> None:
    """Begins a new part of a wait, as the engine's name for its cause changes in the last step."""
    if request.wait.since is not None:
        time = max(request.wait.since, state.blocked.since)
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
        more = {name: length}
    else:
        before = wait.blocked_before
        more = {
            cause: min(seconds - before.get(cause, 0.0), length)
            for cause, seconds in _blocked_until(state, time).items()
        }
    by_cause = dict(wait.by_cause)
    for cause, seconds in more.items():
        if seconds > 0:
            key = cause if cause in by_cause or len(by_cause) < MAX_CAUSES else _OTHER
            by_cause[key] = by_cause.get(key, 0.0) + seconds
    wait = replace(wait, total=wait.total + length, by_cause=by_cause)
    elapsed = _elapsed(max(since, state.blocked.since), time)
    if request.wait_reason is None or elapsed <= 0:
        return wait
    return _with_named(state, request, wait, elapsed)


def advance(state: EngineData, step: Step) -> None:
    """Adds the time up to the start of `step` to the causes that the step before has given."""
    elapsed = _elapsed(state.blocked.since, step.start_time)
    for request_id in state.wait_reason_ids if elapsed > 0 else ():
        request = state.requests.get(request_id)
        if request is not None and request.wait.since is not None:
            request.wait = _with_named(state, request, request.wait, elapsed)
    by_cause = _blocked_until(state, step.start_time)
    state.blocked = replace(state.blocked, by_cause=by_cause, since=step.start_time)


def block(state: EngineData, step: Step) -> None:
    """Sets the cause for which the head of the queue waits from the start of `step` on."""
    head = head_reason(step.wait_reasons)
    state.blocked = replace(state.blocked, cause=None if head is None else head.cause)


def _with_named(
    state: EngineData, request: RequestState, wait: WaitTimes, elapsed: float
) -> WaitTimes:
    """Returns `wait` with seconds in which the scheduler named the request itself.

    They count for the cause that it gave for this request, not for that of the head of the queue.
    """
    by_cause = wait.by_cause
    cause = request.wait_reason.cause if request.wait_reason is not None else None
    if cause not in (None, state.blocked.cause) and _own_cause(state, request) is None:
        more: dict[str, float] = {cause: elapsed} if cause != "unknown" else {}
        if state.blocked.cause is not None:  # these seconds are in `blocked`
            more[state.blocked.cause] = -elapsed
        by_cause = {**by_cause, **{key: by_cause.get(key, 0.0) + more[key] for key in more}}
    return replace(wait, named=wait.named + elapsed, by_cause=by_cause)


def _own_cause(state: EngineData, request: RequestState) -> str | None:
    """Returns the engine's name for a wait that is not for a turn."""
    sequence = state.sequences.get(request.seq_ids[0]) if request.seq_ids else None
    name = "" if sequence is None else sequence.engine_status
    return None if name in OWN_TURN else name


def _blocked_until(state: EngineData, time: float) -> dict[str, float]:
    """Returns the seconds in which the head of the queue was blocked up to `time`, by cause."""
    blocked = state.blocked
    elapsed = _elapsed(blocked.since, time)
    if blocked.cause is None or elapsed <= 0:
        return blocked.by_cause
    seconds = blocked.by_cause.get(blocked.cause, 0.0) + elapsed
    return {**blocked.by_cause, blocked.cause: seconds}


def _elapsed(start: float, end: float) -> float:
    """Returns the seconds between two times; 0 if a clock cannot have measured them."""
    elapsed = end - start
    return elapsed if 0 < elapsed < math.inf else 0.0
