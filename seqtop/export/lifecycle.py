"""The lifecycle of requests, as the exports read it.

An `EngineState` drops finished requests beyond a limit, and every step but the last. `read_runs`
reads a whole timeline and drops nothing.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from seqtop.history.event_index import EventKind
from seqtop.history.replay import Reader, Replay, ShowProgress, no_progress
from seqtop.history.timeline import Timeline
from seqtop.history.token_gaps import add_gaps
from seqtop.sequence import latency
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.step_summary import limiting_cause
from seqtop.state.waits import wait_until
from seqtop.wire.batch import scheduled_requests
from seqtop.wire.messages import EngineInfo, Event, Preemption, Step, StepStats, WaitCause
from seqtop.wire.redaction import redact
from seqtop.wire.snapshot import WaitTimes

Observer: TypeAlias = Callable[[Event, EngineState], None]


class RecordedStep(msgspec.Struct):
    """One step. Times are epoch seconds."""

    step: int
    start_time: float
    time: float
    stats: StepStats
    num_scheduled: int
    """Requests in the batch."""
    num_preempted: int
    limited_by: WaitCause | None
    """The cause that limited the batch; `None` if nothing waits."""


class StepObservations(msgspec.Struct):
    """The parts of steps that concern one request and that its state does not contain."""

    waits: list[tuple[float, WaitCause]] = []
    """The start of each step in which the request waited, epoch seconds, with the cause."""
    preemptions: dict[float, tuple[int, Preemption]] = {}
    """Preemptions with the number of their step, by the start of the step, epoch seconds."""


class RequestLifecycle(msgspec.Struct):
    """One request from its arrival to its end, or to the end of the record."""

    request: RequestState
    sequences: list[SequenceState]
    until: float
    """The engine's clock when the request was last seen, epoch seconds."""
    observations: StepObservations
    wait: WaitTimes
    """The seconds in the queue until then."""

    def latencies(self) -> dict[str, float | None]:
        """Returns the figures of `seqtop.sequence.latency` by name; `None` is unknown."""
        metrics = self.request.metrics
        num_output_tokens = sum(len(sequence.output_token_ids) for sequence in self.sequences)
        return {
            "ttft": latency.ttft(metrics),
            "itl": latency.itl(metrics, num_output_tokens),
            "e2e_latency": latency.e2e_latency(metrics),
            "decode_time": latency.decode_time(metrics),
            "queue_ratio": latency.queue_ratio(metrics),
            "execute_ratio": latency.execute_ratio(metrics),
            "throughput": latency.throughput(metrics, num_output_tokens),
        }


class EngineRun(msgspec.Struct):
    """Everything recorded between two starts of an engine."""

    info: EngineInfo | None
    requests: dict[str, RequestLifecycle] = {}
    """By request id, in order of arrival."""
    steps: list[RecordedStep] = []
    token_gaps: array[float] = msgspec.field(default_factory=lambda: array("d"))
    """Seconds between two tokens of a sequence, in all recorded steps.

    Several tokens of one step count with their mean."""

    @property
    def incarnation(self) -> str:
        """The id of the engine's start; empty if unknown."""
        return self.info.incarnation if self.info else ""


def start_time(runs: Iterable[EngineRun]) -> float:
    """Returns the time of the first arrival or step, epoch seconds; 0 without any."""
    times = [
        time
        for run in runs
        for time in (
            *(lifecycle.request.metrics.arrival_time for lifecycle in run.requests.values()),
            *(step.start_time for step in run.steps[:1]),
        )
        if math.isfinite(time)
    ]
    return min(times, default=0.0)


def lifecycles(state: EngineState) -> Iterator[RequestLifecycle]:
    """Yields the requests of `state`, in order of arrival, without observations of steps."""
    for request in state.requests.values():
        sequences = [state.sequences[seq_id] for seq_id in request.seq_ids]
        wait = wait_until(state, request, state.time)
        yield RequestLifecycle(request, sequences, state.time, StepObservations(), wait)


def redacted(runs: list[EngineRun]) -> list[EngineRun]:
    """Returns copies of `runs` without text and tokens, of which the numbers remain."""
    return [
        replace(
            run,
            info=run.info and redact(run.info),
            requests={
                request_id: replace(
                    lifecycle,
                    request=redact(lifecycle.request),
                    sequences=[redact(sequence) for sequence in lifecycle.sequences],
                )
                for request_id, lifecycle in run.requests.items()
            },
        )
        for run in runs
    ]


class RunsReader(Reader):
    """Reads everything that a timeline holds, with one run for each start of the engine.

    Args:
        timeline: A recording, or the history of a live session.
        observe: Is called with each event and the state after it, which is then changed.
    """

    def __init__(self, timeline: Timeline, observe: Observer | None = None) -> None:
        self.runs: list[EngineRun] = []
        """The runs, complete after `end`."""
        self._timeline = timeline
        self._observe = observe
        self._observations: defaultdict[str, StepObservations] = defaultdict(StepObservations)
        self._token_times: dict[int, float] = {}
        self.state = EngineState()
        """The state after the last event."""

    def start(self, position: int, state: EngineState) -> None:
        """Begins a run with a state, or continues after a gap."""
        self.end()
        is_restart = bool(self._timeline.index[position].kind & EventKind.RESTART)
        if is_restart or not self.runs:
            self.runs.append(EngineRun(state.info))
            self._observations = defaultdict(StepObservations)
        self._token_times.clear()  # it is not known when the tokens of the gap came
        self.state = state

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Reads an event."""
        state, run = self.state, self.runs[-1]
        if self._observe is not None:
            self._observe(event, state)
        if isinstance(event, Step):
            run.steps.append(_recorded_step(event, state.info))
            _observe(event, self._observations)
            add_gaps(event, self._token_times, run.token_gaps)

    def end(self) -> None:
        """Adds the requests of the last state."""
        if self.runs:
            _add_requests(self.runs[-1], self.state, self._observations)


def read_runs(
    timeline: Timeline, observe: Observer | None = None, progress: ShowProgress = no_progress
) -> list[EngineRun]:
    """Returns everything that `timeline` holds now, with one run per start of the engine.

    Args:
        timeline: A recording, or the history of a live session.
        observe: Is called with each event and the state after it, which is then changed.
        progress: Shows the part that has been read.

    Raises:
        RecordingError: A part of the timeline cannot be read.
    """
    reader = RunsReader(timeline, observe)
    Replay(timeline, [reader], last=timeline.last, max_finished=sys.maxsize).run(progress)
    reader.end()
    return reader.runs


def _observe(step: Step, observations: defaultdict[str, StepObservations]) -> None:
    for reason in step.wait_reasons:
        observations[reason.request_id].waits.append((step.start_time, reason.cause))
    for preemption in step.preemptions:
        preemptions = observations[preemption.request_id].preemptions
        preemptions[step.start_time] = (step.step, preemption)


def _add_requests(
    run: EngineRun, state: EngineState, observations: defaultdict[str, StepObservations]
) -> None:
    """Adds the requests of `state` to `run`, replacing those added before."""
    run.info = state.info or run.info
    for lifecycle in lifecycles(state):
        request_id = lifecycle.request.request_id
        lifecycle.observations = observations[request_id]
        run.requests[request_id] = lifecycle


def _recorded_step(step: Step, info: EngineInfo | None) -> RecordedStep:
    num_preempted = len(step.preemptions)
    return RecordedStep(
        step=step.step,
        start_time=step.start_time,
        time=step.time,
        stats=step.stats,
        num_scheduled=sum(1 for _ in scheduled_requests(step)),
        num_preempted=num_preempted,
        limited_by=limiting_cause(step.stats, step.wait_reasons, num_preempted, info),
    )
