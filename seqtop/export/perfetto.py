"""Traces for Perfetto (https://ui.perfetto.dev), in its native format.

Each start of an engine is a process. Its threads are the steps and, in order of arrival, the
sequences; viewers show the tracks of a trace at once if it has a single process. Neighbouring
slices share one time, so they cannot overlap. Texts are not exported; docs/export.md describes the
rest.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from seqtop.export import nanoseconds, track_event
from seqtop.export.lifecycle import EngineRun, RecordedStep, RequestLifecycle
from seqtop.export.torch_trace import TorchTrace
from seqtop.export.track_event import Argument, Arguments, EventType
from seqtop.state import SequenceState, Span

BETWEEN_STEPS = "between steps"
"""The name of a slice in which a request neither waited nor was in a step."""

_PREEMPTIONS = {"preempted": "preemption", "swapped": "swap out"}
"""The instant at the start of each slice without the request's blocks. Its name is not that of the
slice, so that a query by name counts slices only."""
_CATEGORIES = {
    "queued": "waiting",
    "prefill": "running",
    "decode": "running",
    BETWEEN_STEPS: "waiting",
}


class Slice(NamedTuple):
    """A phase of a request. Times are nanoseconds since the epoch."""

    name: str
    start: int
    end: int
    span: Span | None
    """The span it shows; `None` between two spans."""


def encode(runs: list[EngineRun], merged: Sequence[TorchTrace] = ()) -> Iterator[bytes]:
    """Yields the packets of the trace, those of each track in order of time.

    Args:
        runs: What was recorded.
        merged: Traces of torch's profiler, whose threads follow in the last process.
    """
    ids = itertools.count(1)
    for run in runs:
        tracks = _RunTracks(run, ids)
        yield from tracks.process()
        yield from tracks.steps()
        yield from tracks.requests()
    for trace in merged:
        label = f"rank {trace.rank}" if len(merged) > 1 and trace.rank is not None else ""
        yield from trace.packets(tracks.pid, ids, label)


def slices(lifecycle: RequestLifecycle) -> list[Slice]:
    """Returns the phases of a request, from its arrival to its end, without gaps or overlaps.

    Their sum is the end-to-end latency of its `RequestMetrics`, and the sum of those before the
    first prefill is its time in queue.
    """
    metrics = lifecycle.request.metrics
    spans = lifecycle.request.spans
    starts = (metrics.arrival_time, *(span.start for span in spans), lifecycle.until)
    now = next(filter(None, map(nanoseconds.of_time, starts)), 0)
    last = nanoseconds.of_time(metrics.finished_time or lifecycle.until) or now
    slices: list[Slice] = []

    def advance(time: int, name: str, span: Span | None) -> None:
        nonlocal now
        time = min(max(time, now), last)
        if time > now:
            slices.append(Slice(name, now, time, span))
            now = time

    for span in spans:
        advance(nanoseconds.of_time(span.start) or now, BETWEEN_STEPS, None)
        advance(nanoseconds.of_time(span.end) or last, span.kind, span)
    advance(last, BETWEEN_STEPS, None)
    return slices


class _PreemptionFor(NamedTuple):
    """A preemption, as the request sees it that it made room for."""

    request_id: str
    time: int
    """As in `Slice`."""
    flow: int
    arguments: Arguments


class _RunTracks:
    """The process of one start of an engine.

    Processes, threads and flows share one counter: viewers merge threads of equal ids, even those
    of different processes, and order those of a process by their ids.
    """

    def __init__(self, run: EngineRun, ids: Iterator[int]) -> None:
        self._run = run
        self._ids = ids
        self.pid = next(ids)
        """The id of the process."""
        self._tracks: dict[str, int] = {}
        """The track of the first sequence of each request."""
        self._preemptions: list[_PreemptionFor] = []

    def process(self) -> Iterator[bytes]:
        """Yields the packet that declares the process."""
        info = self._run.info
        name = f"requests of {info.engine_id}, {info.model}" if info else "requests"
        if info and info.predicted_from:
            name += f", PREDICTION from {info.predicted_from}"
        yield track_event.process(self.pid, self.pid, name)

    def steps(self) -> Iterator[bytes]:
        """Yields the packets of the steps and the counters."""
        tid = next(self._ids)
        yield track_event.thread(tid, self.pid, tid, "steps")
        counters: dict[str, int] = {}
        now = 0
        for step in self._run.steps:
            start = max(nanoseconds.of_time(step.start_time) or 0, now)
            now = max(nanoseconds.of_time(step.time) or 0, start)
            if now > start:
                yield self._begin(tid, start, "step", "step", _step_arguments(step))
                yield from self._parts(step, tid, start, now)
                yield self._end(tid, now)
            for counter, (value, unit) in _counters(step).items():
                if counter not in counters:
                    counters[counter] = next(self._ids)
                    yield track_event.counter(counters[counter], self.pid, counter, unit)
                yield track_event.sample(counters[counter], now, value)

    def requests(self) -> Iterator[bytes]:
        """Yields the packets of the requests, in order of arrival."""
        for lifecycle in sorted(
            self._run.requests.values(),
            key=lambda lifecycle: lifecycle.request.metrics.arrival_time,
        ):
            for sequence in lifecycle.sequences:
                tid = next(self._ids)
                is_first = self._tracks.setdefault(lifecycle.request.request_id, tid) == tid
                name = lifecycle.request.request_id
                if len(lifecycle.sequences) > 1:
                    name = f"{name} sequence {sequence.seq_id}"
                yield track_event.thread(tid, self.pid, tid, name)
                yield from self._sequence(lifecycle, sequence, tid, is_first=is_first)
        # An arrow starts at an event that is read before the one at which it ends.
        for request_id, time, flow, arguments in self._preemptions:
            if (track := self._tracks.get(request_id)) is not None:
                yield track_event.event(
                    EventType.INSTANT,
                    track,
                    time,
                    "preempts",
                    "preemption",
                    arguments,
                    ended_flows=[flow],
                )

    def _parts(self, step: RecordedStep, tid: int, start: int, end: int) -> Iterator[bytes]:
        """Yields the slices of scheduling and execution within a step."""
        for name, seconds in (
            ("schedule", step.stats.scheduler_time),
            ("execute", step.stats.model_execute_time),
        ):
            until = min(start + (nanoseconds.of_duration(seconds) or 0), end)
            if until > start:
                yield self._begin(tid, start, name, "step", {"seconds": seconds})
                yield self._end(tid, until)
            start = until

    def _sequence(
        self, lifecycle: RequestLifecycle, sequence: SequenceState, tid: int, *, is_first: bool
    ) -> Iterator[bytes]:
        request = lifecycle.request
        first_token = nanoseconds.of_time(request.metrics.first_token_time)
        resumed: list[int] = []
        for slice_ in slices(lifecycle):
            arguments = _slice_arguments(lifecycle, slice_)
            flows, ended = [], []
            if slice_.name in _PREEMPTIONS:
                yield from self._preemption(lifecycle, slice_, tid, arguments, is_first=is_first)
                flows = resumed = [next(self._ids)]
            elif slice_.span is not None and slice_.span.num_steps:
                ended, resumed = resumed, []
            category = _CATEGORIES.get(slice_.name, "preemption")
            yield self._begin(tid, slice_.start, slice_.name, category, arguments, flows, ended)
            if first_token is not None and slice_.start < first_token <= slice_.end:
                ttft = {"ttft_seconds": lifecycle.latencies()["ttft"]}
                yield self._instant(tid, first_token, "first token", "request", ttft)
            yield self._end(tid, slice_.end)
        end = nanoseconds.of_time(request.metrics.finished_time or lifecycle.until)
        if request.finish_reason is not None and end is not None:
            arguments = _end_arguments(lifecycle, sequence)
            yield self._instant(tid, end, "finished", "request", arguments)

    def _preemption(
        self,
        lifecycle: RequestLifecycle,
        slice_: Slice,
        tid: int,
        arguments: Arguments,
        *,
        is_first: bool,
    ) -> Iterator[bytes]:
        """Yields the instant of a preemption, and keeps what its beneficiary shows of it."""
        span, flows = slice_.span, []
        found = lifecycle.observations.preemptions.get(span.start) if span is not None else None
        preemption = None if found is None else found[1]
        if is_first and preemption is not None and preemption.for_request_id is not None:
            flows = [next(self._ids)]
            shown = {
                "victim": lifecycle.request.request_id,
                "step": arguments.get("step"),
                "num_lost_tokens": preemption.num_lost_tokens,
            }
            self._preemptions.append(
                _PreemptionFor(preemption.for_request_id, slice_.start, flows[0], shown)
            )
        name = _PREEMPTIONS[slice_.name]
        yield self._instant(tid, slice_.start, name, "preemption", arguments, flows)

    def _begin(
        self,
        track: int,
        time: int,
        name: str,
        category: str,
        arguments: Arguments,
        flows: Sequence[int] = (),
        ended_flows: Sequence[int] = (),
    ) -> bytes:
        return track_event.event(
            EventType.SLICE_BEGIN, track, time, name, category, arguments, flows, ended_flows
        )

    def _end(self, track: int, time: int) -> bytes:
        return track_event.event(EventType.SLICE_END, track, time)

    def _instant(
        self,
        track: int,
        time: int,
        name: str,
        category: str,
        arguments: Arguments,
        flows: Sequence[int] = (),
    ) -> bytes:
        return track_event.event(EventType.INSTANT, track, time, name, category, arguments, flows)


def _slice_arguments(lifecycle: RequestLifecycle, slice_: Slice) -> Arguments:
    arguments: dict[str, Argument | None] = {"request_id": lifecycle.request.request_id}
    span = slice_.span
    if span is None:
        return arguments
    if span.num_steps:
        return {**arguments, "num_steps": span.num_steps, "num_tokens": span.num_tokens}
    if slice_.name in _PREEMPTIONS and span.start in lifecycle.observations.preemptions:
        step, preemption = lifecycle.observations.preemptions[span.start]
        arguments |= {
            "step": step,
            "num_lost_tokens": preemption.num_lost_tokens,
            "preempted_for": preemption.for_request_id,
        }
    causes = Counter(
        cause
        for time, cause in lifecycle.observations.waits
        if slice_.start <= (nanoseconds.of_time(time) or 0) < slice_.end
    )
    return arguments | {f"num_steps_{cause}": count for cause, count in causes.items()}


def _end_arguments(lifecycle: RequestLifecycle, sequence: SequenceState) -> Arguments:
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


def _step_arguments(step: RecordedStep) -> Arguments:
    stats = step.stats
    return {
        "step": step.step,
        "num_scheduled": step.num_scheduled,
        "num_running": stats.num_running,
        "num_waiting": stats.num_waiting,
        "num_preempted": step.num_preempted,
        "limited_by": step.limited_by,
        "scheduler_seconds": stats.scheduler_time,
        "model_forward_seconds": stats.model_forward_time,
        "model_execute_seconds": stats.model_execute_time,
    }


def _counters(step: RecordedStep) -> dict[str, tuple[int, str]]:
    """Returns the values of counters by name, with their units."""
    stats = step.stats
    counters = {
        "KV blocks used": (stats.num_used_blocks, "blocks"),
        "batch": (step.num_scheduled, "requests"),
        "waiting": (stats.num_waiting, "sequences"),
        "prefill tokens per step": (stats.num_prefill_tokens, "tokens"),
        "decode tokens per step": (stats.num_decode_tokens, "tokens"),
    }
    if stats.num_cached_blocks is not None:
        counters["KV blocks cached"] = (stats.num_cached_blocks, "blocks")
    return counters
