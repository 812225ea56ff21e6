"""The waiting of all requests by cause, and figures of waste, added up with each step.

The seconds of waiting are those of all requests together: two that wait for three seconds are six.
They follow from the numbers of requests that waited, so a step costs O(1), whatever the queue. The
time between two steps belongs to what the requests waited for before it.

The sums are of all observed steps. Copies of them, one in `SAMPLE_SECONDS`, are kept for the last
minute, from which follow the sums of that minute.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from seqtop.sequence import SequenceStatus
from seqtop.state.model import EngineData, RequestState, SequenceState
from seqtop.state.step_summary import has_work
from seqtop.state.wait_causes import OWN_TURN, head_reason
from seqtop.wire.messages import Step

WINDOW_SECONDS = 60.0
SAMPLE_SECONDS = 5.0
_MAX_SAMPLES = 14
FIRST_STEPS = 100
"""The first steps, whose scheduling time is compared with that of later ones."""
_MAX_CAUSES = 32
"""Different causes that are told apart: an engine may invent names of statuses."""
_OTHER = "other"
WAITED = "waited:"
"""The beginning of the keys of seconds of waiting, followed by the cause."""
_QUEUED = (SequenceStatus.WAITING, SequenceStatus.SWAPPED)


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
    """Returns the number of sequences that wait, by what the last step gave as the cause."""
    by_cause = Counter(state.num_parked)
    left = sum(state.num_by_status[status] for status in _QUEUED) - by_cause.total()
    if left <= 0:
        return by_cause
    reasons = [
        request.wait_reason
        for name in state.wait_reason_ids
        if (request := state.requests.get(name)) is not None and request.wait_reason is not None
    ]
    for reason in reasons:
        by_cause[reason.cause] += 1
    left -= len(reasons)
    if left > 0:
        head = head_reason(reasons)
        by_cause[head.cause if head is not None else "unknown"] += left
    return by_cause


def advance(state: EngineData, time: float) -> None:
    """Adds the waiting up to `time`, epoch seconds, before the requests that wait change."""
    limits = state.limits
    seconds = _elapsed(limits.until, time) if limits.until > 0 else 0.0
    if seconds > 0 and (by_cause := waiting_by_cause(state)):
        sums = dict(limits.sums)
        _add_waits(sums, by_cause, seconds)
        state.limits = replace(limits, sums=sums, until=time)
    elif math.isfinite(time) and time > limits.until:
        since = limits.since if limits.until > 0 else time
        state.limits = replace(limits, until=time, since=since)


def add_step(state: EngineData, step: Step, end_before: float) -> None:
    """Adds a step, which the state has applied.

    Args:
        state: The state.
        step: The step.
        end_before: The end of the step before, epoch seconds; 0 if there was none.
    """
    advance(state, step.time)
    limits, stats = state.limits, step.stats
    sums = dict(limits.sums)
    gap = _elapsed(end_before, step.start_time) if end_before > 0 else 0.0
    length = _elapsed(max(end_before, step.start_time), step.time)
    num_tokens = stats.num_prefill_tokens + stats.num_decode_tokens
    had_work = state.stats is not None and has_work(state.stats)
    if gap > 0 and had_work:
        paced = min(max(stats.paced_time, 0.0), gap) if math.isfinite(stats.paced_time) else 0.0
        _add(sums, "busy", gap)
        # Only requests that run are delayed by the host; the others wait for the same as before.
        if num_tokens and state.stats is not None and state.stats.num_running:
            _add(sums, "host", gap - paced)
    _add(sums, "busy", length)
    _add(sums, "steps", 1.0)
    _add(sums, "step_time", length)
    _add(sums, "scheduler", stats.scheduler_time or 0.0)
    if sums["steps"] <= FIRST_STEPS:
        _add(sums, "first_scheduler", stats.scheduler_time or 0.0)
    _add(sums, "tokens", float(num_tokens))
    if not num_tokens and has_work(stats) and not state.num_parked:
        _add(sums, "empty_steps", 1.0)
        _add(sums, "empty", length + gap)
    for preemption in step.preemptions:
        _add(sums, "preemptions", 1.0)
        _add(sums, "lost", float(preemption.num_lost_tokens))
    if stats.cuda_graph is not None and not stats.num_prefill_tokens and num_tokens:
        kind = "eager" if stats.cuda_graph.mode.upper() == "NONE" else "graph"
        _add(sums, f"{kind}_steps", 1.0)
        _add(sums, f"{kind}_time", length)
        _add(sums, f"{kind}_tokens", float(num_tokens))
    samples = limits.samples
    if not samples or not 0 <= step.time - samples[-1][0] < SAMPLE_SECONDS:
        samples = [*samples[-_MAX_SAMPLES + 1 :], (step.time, sums)]
    state.limits = replace(limits, sums=sums, samples=samples)


def add_end(state: EngineData, request: RequestState) -> None:
    """Adds a request that has ended: what an abort wasted, and how long its KV cache was loaded."""
    more = dict[str, float]()
    sequences = [state.sequences[seq_id] for seq_id in request.seq_ids]
    if request.finish_reason == "abort":
        num_wasted = sum(own.num_computed_tokens - own.num_cached_tokens for own in sequences)
        more = {"aborts": 1.0, "aborted": float(max(num_wasted, 0))}
    loaded = sum(own.num_external_tokens for own in sequences)
    costs = state.step_costs
    seconds = sum(length for cause, length in request.wait.by_cause.items() if "REMOTE_KV" in cause)
    if loaded > 0 and seconds > 0 and costs.per_step is not None:
        more |= {"load": seconds, "load_computed": loaded * costs.per_prefill_token}
    if more:
        sums = dict(state.limits.sums)
        for key, value in more.items():
            _add(sums, key, value)
        state.limits = replace(state.limits, sums=sums)


def sums_at(state: EngineData, time: float) -> Mapping[str, float]:
    """Returns the sums up to `time`, epoch seconds, which is not before the last step.

    What waits since then waits for the same as before.
    """
    limits = state.limits
    seconds = _elapsed(limits.until, time)
    if seconds <= 0 or limits.until <= 0:
        return limits.sums
    sums = dict(limits.sums)
    _add_waits(sums, waiting_by_cause(state), seconds)
    return sums


def last_minute(state: EngineData) -> tuple[float, Mapping[str, float]]:
    """Returns the length of the last minute, in seconds, and the sums of it.

    It is shorter at the beginning, and up to `SAMPLE_SECONDS` longer afterwards.
    """
    limits, now = state.limits, max(state.time, state.limits.until)
    start = now - WINDOW_SECONDS
    if not limits.samples:
        return 0.0, {}
    if start >= limits.until:
        since, before = start, sums_at(state, start)
    else:
        early = [sample for sample in limits.samples if sample[0] <= start]
        since, before = early[-1] if early else limits.samples[0]
        if not early and len(limits.samples) < _MAX_SAMPLES:
            before = {}  # it began within this minute
    after = sums_at(state, now)
    return now - since, {key: after[key] - before.get(key, 0.0) for key in after}


def _add_waits(sums: dict[str, float], by_cause: Mapping[str, int], seconds: float) -> None:
    for cause, number in by_cause.items():
        key = WAITED + cause
        if key not in sums and sum(own.startswith(WAITED) for own in sums) >= _MAX_CAUSES:
            key = WAITED + _OTHER
        _add(sums, key, seconds * number)


def _add(sums: dict[str, float], key: str, more: float) -> None:
    if 0 < more < math.inf:
        sums[key] = sums.get(key, 0.0) + more


def _elapsed(start: float, end: float) -> float:
    """Returns the seconds between two times; 0 if a clock cannot have measured them."""
    elapsed = end - start
    return elapsed if 0 < elapsed < math.inf else 0.0
