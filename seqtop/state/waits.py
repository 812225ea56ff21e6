"""Seconds that requests waited in the queue, by cause.

A scheduler names the cause for the head of the queue and for requests that it passes over.
Everything behind the head waits for the same thing as the head. So the state adds up the seconds by
the cause that each step gave for the head, and a request's share is the difference between the end
and the beginning of its wait: O(1) per request and step. A cause holds from the start of the step
that gave it to the start of the next one, and not before the request arrived: the time between two
steps belongs to what a request waits for, and only those that run are delayed by the host, or by
the engine's pace. Seconds of steps that gave no cause are unknown. A wait for something other than
a turn (`SequenceState.engine_status`) counts under the engine's own name for it.

The seconds of all requests together, by cause, are added up at the same moments, in
`EngineData.limits`: two that wait for three seconds are six. They follow from the numbers of those
that wait.

An engine that schedules a step before the one before has ended may announce an arrival between the
two: the causes of such a request are exact up to one step.
"""

import math
from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from seqtop.sequence import SequenceStatus
from seqtop.state.model import EngineData, RequestState, SequenceState
from seqtop.state.step_costs import elapsed
from seqtop.state.wait_causes import (
    ARRIVING,
    BETWEEN_STEPS,
    IN_PROGRESS,
    OWN_TURN,
    head_reason,
)
from seqtop.wire.messages import SequenceUpdate, Step
from seqtop.wire.snapshot import BlockedTimes, WaitTimes

MAX_CAUSES = 16
"""The most causes that are told apart for one request; an engine may invent names."""
MAX_CAUSES_OF_ALL = 32
"""The same for all requests together."""
WAITED = "waited:"
"""The beginning of the keys of seconds of waiting in `Limits.sums`, followed by the cause."""
_OTHER = "other"
_QUEUED = (SequenceStatus.WAITING, SequenceStatus.SWAPPED)


def is_parked(update: SequenceUpdate) -> bool:
    """Returns whether a sequence waits for something other than its turn from an update on."""
    is_waiting = update.status is SequenceStatus.WAITING
    return is_waiting and update.engine_status not in OWN_TURN


def join_queue(state: EngineData, request: RequestState, time: float) -> None:
    """Begins the wait of a request that arrived at `time`, epoch seconds.

    It was too late for a step that had begun before.
    """
    late = elapsed(time, state.blocked.until) if state.num_steps_seen else 0.0
    if late > 0:
        request.wait = _plus(request.wait, {ARRIVING: late}, late)
        time = state.blocked.until
    begin_wait(state, request, time)


def begin_wait(state: EngineData, request: RequestState, time: float) -> None:
    """Begins a wait at `time`, epoch seconds, which is not before the end of the last step."""
    count_until(state, time)
    blocked = state.blocked
    is_first = not state.num_steps_seen and not 0 < blocked.until < time
    if is_first and 0 < time < math.inf:
        blocked = state.blocked = replace(blocked, until=time)
    between = elapsed(blocked.until, time)
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
        count_until(state, time)
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
    length = elapsed(since, time)
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
    more[IN_PROGRESS] = min(elapsed(state.blocked.until, time), length)
    return _plus(wait, more, length)


def advance(state: EngineData, step: Step) -> None:
    """Adds the time between the last step and the start of `step` to the cause of the last step."""
    count_until(state, step.start_time)
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
    head = head_reason(step.wait_reasons)
    cause = "" if head is None else head.cause
    blocked = state.blocked = replace(state.blocked, cause=cause)
    count_until(state, step.time)
    seconds = elapsed(blocked.until, step.time)
    if seconds > 0:
        _correct_named(state, cause, step.time)
        by_cause = _with(blocked.by_cause, {cause: seconds}) if cause else blocked.by_cause
        state.blocked = replace(blocked, by_cause=by_cause, until=step.time)


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
            seconds = elapsed(max(request.wait.since, state.blocked.until), end)
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


# --- All requests together


def count_parked(state: EngineData, sequence: SequenceState, number: int) -> None:
    """Adds a sequence to those that wait for something other than their turn, if it is one.

    Args:
        state: The state.
        sequence: The sequence, as it is before or after a change of its status.
        number: 1 after a change, -1 before it.
    """
    status = sequence.engine_status
    if sequence.status in _QUEUED and status not in OWN_TURN:
        left = state.num_parked.get(status, 0) + number
        others = {name: count for name, count in state.num_parked.items() if name != status}
        state.num_parked = {**others, status: left} if left > 0 else others


def waiting_by_cause(state: EngineData) -> Counter[str]:
    """Returns the number of requests that wait, by what the last step gave as the cause."""
    by_cause = Counter(state.num_parked)
    left = len(state.in_queue)
    if not left:
        return by_cause
    reasons = [
        request.wait_reason
        for name in state.wait_reason_ids
        if name in state.in_queue
        and (request := state.requests.get(name)) is not None
        and request.wait_reason is not None
    ]
    by_cause.update(reason.cause for reason in reasons)
    if left > len(reasons):
        by_cause[state.blocked.cause or "unknown"] += left - len(reasons)
    return by_cause


def add_waited(
    sums: Mapping[str, float], by_cause: Mapping[str, int], seconds: float
) -> dict[str, float]:
    """Returns `sums` with the waiting of numbers of requests by cause, each for so many seconds."""
    more = dict(sums)
    for cause, number in by_cause.items():
        key = WAITED + cause
        if key not in more and sum(own.startswith(WAITED) for own in more) >= MAX_CAUSES_OF_ALL:
            key = WAITED + _OTHER
        if 0 < seconds * number < math.inf:
            more[key] = more.get(key, 0.0) + seconds * number
    return more


def count_until(state: EngineData, time: float) -> None:
    """Adds the waiting of all up to `time`, epoch seconds, before those that wait change."""
    limits = state.limits
    seconds = elapsed(limits.until, time) if limits.until > 0 else 0.0
    if seconds > 0 and (by_cause := waiting_by_cause(state)):
        state.limits = replace(limits, sums=add_waited(limits.sums, by_cause, seconds), until=time)
    elif math.isfinite(time) and time > limits.until:
        since = limits.since if limits.until > 0 else time
        state.limits = replace(limits, until=time, since=since)
