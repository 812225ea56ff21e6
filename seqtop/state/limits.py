"""Figures of waste, added up with each step, and the sums of the last minute.

The sums are of all observed steps. Beside the figures of waste, they have the seconds that all
requests waited, by cause (`seqtop.state.waits`). Copies of them, one in `SAMPLE_SECONDS`, are kept
for the last minute, from which follow the sums of that minute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec.structs import replace

from seqtop.state.inversions import present_inversion
from seqtop.state.model import EngineData, RequestState
from seqtop.state.step_costs import elapsed, gap_parts, has_graph, has_work
from seqtop.state.waits import add_waited, waiting_by_cause
from seqtop.wire.messages import Step
from seqtop.wire.snapshot import Inversion

WINDOW_SECONDS = 60.0
SAMPLE_SECONDS = 5.0
_MAX_SAMPLES = 14
_LEAST_INVERSION = 1.0
"""The seconds of waiting for requests of lower priority that are remembered."""
FIRST_STEPS = 100
"""The first steps, whose scheduling time is compared with that of later ones."""


def add_step(state: EngineData, step: Step, end_before: float) -> None:
    """Adds a step, which the state has applied.

    Args:
        state: The state.
        step: The step.
        end_before: The end of the step before, epoch seconds; 0 if there was none.
    """
    limits, stats = state.limits, step.stats
    sums = dict(limits.sums)
    gap = elapsed(end_before, step.start_time) if end_before > 0 else 0.0
    length = elapsed(max(end_before, step.start_time), step.time)
    num_tokens = stats.num_prefill_tokens + stats.num_decode_tokens
    had_work = state.stats is not None and has_work(state.stats)
    if gap > 0 and had_work:
        _add(sums, "busy", gap)
        # Only requests that run are delayed by the host; the others wait for the same as before.
        if num_tokens and state.stats is not None and state.stats.num_running:
            _add(sums, "host", gap_parts(gap, stats, was_idle=False)["host"])
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
    ran_as_graph = has_graph(stats)
    if ran_as_graph is not None and not stats.num_prefill_tokens and num_tokens:
        kind = "graph" if ran_as_graph else "eager"
        _add(sums, f"{kind}_steps", 1.0)
        _add(sums, f"{kind}_time", length)
        _add(sums, f"{kind}_tokens", float(num_tokens))
    samples = limits.samples
    if not samples or not 0 <= step.time - samples[-1][0] < SAMPLE_SECONDS:
        samples = [*samples[-_MAX_SAMPLES + 1 :], (step.time, sums)]
        limits = replace(limits, inversion=_longest_inversion(state))
    state.limits = replace(limits, sums=sums, samples=samples)


def _longest_inversion(state: EngineData) -> Inversion | None:
    now, before = present_inversion(state), state.limits.inversion
    if now is None or now.seconds < _LEAST_INVERSION:
        return before
    return now if before is None or now.seconds >= before.seconds else before


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
    seconds = elapsed(limits.until, time)
    if seconds <= 0 or limits.until <= 0:
        return limits.sums
    return add_waited(limits.sums, waiting_by_cause(state), seconds)


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


def _add(sums: dict[str, float], key: str, more: float) -> None:
    if 0 < more < math.inf:
        sums[key] = sums.get(key, 0.0) + more
