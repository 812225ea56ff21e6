"""Traces for Perfetto (https://ui.perfetto.dev) and chrome://tracing, in the Trace Event Format.

Slices are pairs of begin and end events: neighbouring slices share one time, so rounding cannot
make them overlap. Each request is a process and each of its sequences a thread; the engine is a
process with its steps and counters. Texts are not exported; docs/export.md describes the rest.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec

from seqtop.export.lifecycle import EngineRun, RecordedStep, RequestLifecycle, start_time
from seqtop.state import SequenceState, Span
from seqtop.text.sanitize import safe_text

TraceEvent: TypeAlias = dict[str, Any]

BETWEEN_STEPS = "between steps"
"""The name of a slice in which a request neither waited nor was in a step."""

_LONGEST_SECONDS = 4e9


class Slice(NamedTuple):
    """A phase of a request. Times are nanoseconds since the start of the trace."""

    name: str
    start: int
    end: int
    span: Span | None
    """The span it shows; `None` between two spans."""


def encode(runs: list[EngineRun]) -> Iterator[bytes]:
    """Yields the trace as UTF-8 JSON, one line per event."""
    clock = Clock(runs)
    info = next((run.info for run in runs if run.info), None)
    other = {
        "source": "seqtop",
        "start_time": clock.origin,
        "engine": info and safe_text(info.engine),
        "model": info and safe_text(info.model),
    }
    yield b'{"displayTimeUnit":"ms","otherData":' + msgspec.json.encode(other)
    yield b',"traceEvents":['
    separator = b"\n"
    for event in trace_events(runs, clock):
        yield separator + msgspec.json.encode(event)
        separator = b",\n"
    yield b"\n]}\n"


_PREEMPTIONS = {"preempted": "preemption", "swapped": "swap out"}
"""The instant at the start of each slice without the request's blocks. Its name is not that of the
slice, so that a query by name counts slices only."""


class Clock:
    """Converts epoch seconds to the time of a trace, which starts with its first event."""

    def __init__(self, runs: list[EngineRun]) -> None:
        self.origin = start_time(runs)
        """The start of the trace, epoch seconds."""

    def nanoseconds(self, time: float | None, *, unknown: int) -> int:
        """Converts epoch seconds; returns `unknown` for `None` and non-finite numbers."""
        if time is None or not math.isfinite(time):
            return unknown
        # Perfetto uses 64-bit times, which an untrusted clock may exceed.
        return round(min(max(time - self.origin, 0.0), _LONGEST_SECONDS) * 1e9)


def slices(lifecycle: RequestLifecycle, clock: Clock) -> list[Slice]:
    """Returns the phases of a request, from its arrival to its end, without gaps or overlaps.

    Their sum is the end-to-end latency of its `RequestMetrics`, and the sum of those before the
    first prefill is its time in queue.
    """
    metrics = lifecycle.request.metrics
    now = clock.nanoseconds(metrics.arrival_time, unknown=0)
    last = clock.nanoseconds(metrics.finished_time or lifecycle.until, unknown=now)
    slices: list[Slice] = []

    def advance(time: int, name: str, span: Span | None) -> None:
        nonlocal now
        time = min(max(time, now), last)
        if time > now:
            slices.append(Slice(name, now, time, span))
            now = time

    for span in lifecycle.request.spans:
        start = clock.nanoseconds(span.start, unknown=now)
        advance(start, BETWEEN_STEPS, None)
        advance(clock.nanoseconds(span.end, unknown=last), span.kind, span)
    advance(last, BETWEEN_STEPS, None)
    return slices


def trace_events(runs: list[EngineRun], clock: Clock) -> Iterator[TraceEvent]:
    """Yields every event of the trace, those of each track in order of time."""
    # Processes and threads share one counter: viewers merge threads of equal ids, even those of
    # different processes.
    ids = itertools.count(1)
    for run in runs:
        yield from _engine(run, next(ids), next(ids), clock)
        pid = next(ids)
        yield _named("process_name", pid, pid, "requests")
        # Perfetto sorts the threads of a process by their ids: here by arrival.
        for lifecycle in sorted(
            run.requests.values(), key=lambda lifecycle: lifecycle.request.metrics.arrival_time
        ):
            for sequence in lifecycle.sequences:
                tid = next(ids)
                name = lifecycle.request.request_id
                if len(lifecycle.sequences) > 1:
                    name = f"{name} sequence {sequence.seq_id}"
                yield _named("thread_name", pid, tid, name)
                yield from _sequence(lifecycle, sequence, pid, tid, clock)


def _engine(run: EngineRun, pid: int, tid: int, clock: Clock) -> Iterator[TraceEvent]:
    name = f"engine {run.info.engine_id}, {run.info.model}" if run.info else "engine"
    if run.info and run.info.predicted_from:
        name += f", PREDICTION from {run.info.predicted_from}"
    yield _named("process_name", pid, pid, name)
    yield _named("thread_name", pid, tid, "steps")
    now = 0
    for step in run.steps:
        start = max(clock.nanoseconds(step.start_time, unknown=now), now)
        now = max(clock.nanoseconds(step.time, unknown=start), start)
        if now > start:
            yield _event("B", "step", pid, tid, start, _step_args(step))
            yield _event("E", "step", pid, tid, now)
        for name, values in _counters(step).items():
            yield _event("C", name, pid, tid, now, values)


def _sequence(
    lifecycle: RequestLifecycle, sequence: SequenceState, pid: int, tid: int, clock: Clock
) -> Iterator[TraceEvent]:
    request = lifecycle.request
    first_token = clock.nanoseconds(request.metrics.first_token_time, unknown=-1)
    for slice_ in slices(lifecycle, clock):
        args = _slice_args(lifecycle, slice_, clock)
        if slice_.name in _PREEMPTIONS:
            yield _instant(_PREEMPTIONS[slice_.name], pid, tid, slice_.start, args)
        yield _event("B", slice_.name, pid, tid, slice_.start, args)
        if slice_.start < first_token <= slice_.end:
            args = {"ttft_seconds": lifecycle.latencies()["ttft"]}
            yield _instant("first token", pid, tid, first_token, args)
        yield _event("E", slice_.name, pid, tid, slice_.end)
    if request.finish_reason is not None:
        end = clock.nanoseconds(request.metrics.finished_time or lifecycle.until, unknown=0)
        yield _instant("finished", pid, tid, end, _end_args(lifecycle, sequence))


def _slice_args(lifecycle: RequestLifecycle, slice_: Slice, clock: Clock) -> dict[str, Any]:
    args: dict[str, Any] = {"request_id": safe_text(lifecycle.request.request_id)}
    span = slice_.span
    if span is None:
        return args
    if span.num_steps:
        return {**args, "num_steps": span.num_steps, "num_tokens": span.num_tokens}
    if slice_.name in _PREEMPTIONS:
        args |= _preemption_args(lifecycle, span)
    causes = Counter(
        cause
        for time, cause in lifecycle.observations.waits
        if slice_.start <= clock.nanoseconds(time, unknown=-1) < slice_.end
    )
    return args | {f"num_steps_{cause}": count for cause, count in causes.items()}


def _preemption_args(lifecycle: RequestLifecycle, span: Span) -> dict[str, Any]:
    """Returns the details of a preemption if its step is recorded."""
    if span.start not in lifecycle.observations.preemptions:
        return {}
    step, preemption = lifecycle.observations.preemptions[span.start]
    preempting = preemption.for_request_id
    return {
        "step": step,
        "num_lost_tokens": preemption.num_lost_tokens,
        "preempted_for": None if preempting is None else safe_text(preempting),
    }


def _end_args(lifecycle: RequestLifecycle, sequence: SequenceState) -> dict[str, Any]:
    request = lifecycle.request
    metrics = request.metrics
    return {
        "reason": request.finish_reason,
        "num_prompt_tokens": sequence.num_prompt_tokens,
        "num_cached_tokens": sequence.num_cached_tokens,
        "num_output_tokens": len(sequence.output_token_ids),
        "num_preemptions": request.num_preemptions,
        "e2e_latency_seconds": lifecycle.latencies()["e2e_latency"],
        "time_in_queue_seconds": metrics.time_in_queue,
        "model_execute_seconds": metrics.model_execute_time,
    }


def _step_args(step: RecordedStep) -> dict[str, Any]:
    stats = step.stats
    return {
        "step": step.step,
        "num_scheduled": step.num_scheduled,
        "num_running": stats.num_running,
        "num_waiting": stats.num_waiting,
        "num_preempted": step.num_preempted,
        "scheduler_seconds": stats.scheduler_time,
        "model_forward_seconds": stats.model_forward_time,
        "model_execute_seconds": stats.model_execute_time,
    }


def _counters(step: RecordedStep) -> dict[str, dict[str, int]]:
    stats = step.stats
    return {
        "KV blocks": {
            "used": stats.num_used_blocks,
            **({} if stats.num_cached_blocks is None else {"cached": stats.num_cached_blocks}),
        },
        "batch": {"requests": step.num_scheduled},
        "waiting": {"requests": stats.num_waiting},
        "tokens per step": {
            "prefill": stats.num_prefill_tokens,
            "decode": stats.num_decode_tokens,
        },
    }


def _event(
    phase: str, name: str, pid: int, tid: int, time: int, args: dict[str, Any] | None = None
) -> TraceEvent:
    """Returns an event at `time`, in nanoseconds; the format has microseconds."""
    event = {"ph": phase, "name": name, "pid": pid, "tid": tid, "ts": time / 1_000}
    return event if args is None else {**event, "args": args}


def _instant(name: str, pid: int, tid: int, time: int, args: dict[str, Any]) -> TraceEvent:
    return {**_event("i", name, pid, tid, time, args), "s": "t"}


def _named(kind: str, pid: int, tid: int, name: str) -> TraceEvent:
    return _event("M", kind, pid, tid, 0, {"name": safe_text(name)})
