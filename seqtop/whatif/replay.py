"""Gives a workload to a real scheduler again, step by step or at its times."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import zip_longest
from operator import itemgetter
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from seqtop.history.file_writer import FileWriter
from seqtop.history.step_time import MAX_EXTRAPOLATED, Size, StepTime
from seqtop.history.timed_steps import TimedStep
from seqtop.state import EngineState
from seqtop.state.slo import Slo
from seqtop.whatif.figures import FigureCounter, RunFigures
from seqtop.whatif.workload import Workload, WorkloadError, WorkloadRequest, predecessors
from seqtop.wire import codec, parsing
from seqtop.wire.messages import ControlCall, Event, RequestFinished

Arrivals: TypeAlias = Literal["time", "step", "closed-loop"]
"""The arrivals of requests: at their recorded times, before the same steps as in the recording, or
as long after the end of an earlier request as they did."""


class ReplayOptions(msgspec.Struct, kw_only=True):
    """The rules by which a workload is replayed."""

    settings: dict[str, bool | int | float | str | None] = {}
    """Settings other than the recorded ones, by the engine's names."""
    arrivals: Arrivals = "step"
    scale_arrivals: float = 1.0
    """Requests arrive this many times as fast."""
    without: list[str] = []
    """Ids of requests that are left out."""
    step_time: StepTime | None = None
    """The model of the times of steps; `None` for the recorded times."""
    objectives: dict[str, float] = {}
    """Limits of latencies in seconds, as in `seqtop.state.slo.Slo`."""
    model: str | None = None
    """The directory of the model, if it is not where the recording says."""


class ReplayResult(msgspec.Struct, kw_only=True):
    """The result of a replay."""

    num_steps: int = 0
    num_extrapolated: int = 0
    """Steps that were larger than any recorded one."""
    share_extrapolated: float = 0.0
    """The part of the time of all steps that these took."""
    num_following: int = 0
    """Requests that arrived after the end of another one, in a closed loop."""
    figures: RunFigures = msgspec.field(default_factory=RunFigures)
    cut: dict[str, float] = {}
    """Requests that were cut off, since the recording has no more tokens of them, with the times
    (epoch seconds)."""
    refused: dict[str, str] = {}
    """Requests that the engine refused with these settings, with the reasons."""
    error: str | None = None
    """The reason why there is no result, in one sentence."""
    has_failed: bool = False
    """True if that is an exception of the scheduler in the replay."""

    @property
    def num_refused(self) -> int:
        """The number of requests that the engine refused or ignored with these settings."""
        return len(self.refused) + self.figures.num_ignored

    @property
    def is_beyond(self) -> bool:
        """True if over a fifth of the time is in steps larger than recorded ones: a guess."""
        return self.share_extrapolated > MAX_EXTRAPOLATED


class Clock:
    """A clock that stands still until it is set.

    Attributes:
        now: The time in seconds since the epoch.
    """

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Returns the time."""
        return self.now


class ReplayedScheduler(Protocol):
    """A real scheduler whose model returns recorded tokens. It publishes what it does."""

    def add(self, request: WorkloadRequest, arrival_time: float) -> None:
        """Adds a request.

        Raises:
            ValueError: The engine refuses the request.
        """

    def abort(self, request_id: str, *, during_step: bool = False) -> None:
        """Aborts a request, if it is unfinished: now, or after the next step is scheduled."""

    def control(self, call: ControlCall) -> None:
        """Repeats a call from outside.

        Raises:
            WorkloadError: The engine has no such call.
        """

    def step(self) -> list[str]:
        """Runs a step. Its model sets the clock to the end of the step.

        Returns:
            The requests that want a token that is not recorded.
        """

    def schedule(self) -> None:
        """Schedules a step of an asynchronous engine, and processes no outputs."""

    def process_outputs(self, num_steps: int) -> list[str]:
        """Processes the outputs of an asynchronous engine, up to those of its first steps.

        Returns:
            The requests that want a token that is not recorded.
        """

    @property
    def has_work(self) -> bool:
        """True if a step has something to do."""


class MessageSink(Protocol):
    """Receives what a scheduler publishes."""

    def publish(self, event: Event) -> None:
        """Receives a message."""


class RecordingSink:
    """Writes messages to a recording, as a viewer of the engine would.

    Args:
        writer: The recording.
    """

    def __init__(self, writer: FileWriter) -> None:
        self._writer = writer
        self._state = EngineState()
        self._number = 0

    def publish(self, event: Event) -> None:
        """Records a message."""
        payload = codec.encode(event)
        # The engine goes on changing its own objects.
        received = parsing.event(payload)
        self._state.apply(received)
        self._writer.append(self._number, payload, received, self._state)
        self._number += 1


class _Join(NamedTuple):
    """A request that joins the waiting queue."""

    time: float
    number: int
    """The place in the order of arrival."""
    request_id: str
    arrival_time: float


class WorkloadReplay:
    """A workload on its way through a scheduler, whose messages it receives.

    Args:
        workload: The workload.
        options: What is different.
        clock: The clock of the scheduler.
        recording: Receives the messages too; `None` if only the figures are wanted.
        progress: Called with the share of the requests that have ended.
    """

    def __init__(
        self,
        workload: Workload,
        options: ReplayOptions,
        clock: Clock,
        recording: MessageSink | None = None,
        progress: Callable[[float], object] = lambda _: None,
    ) -> None:
        self._workload = workload
        self._options = options
        self._clock = clock
        self._recording = recording
        self._progress = progress
        self._result = ReplayResult()
        self._counter = FigureCounter(Slo(**options.objectives))
        self._seconds = self._seconds_extrapolated = 0.0
        self._num_ended = 0
        self._without = {*options.without}
        self._numbers = {request_id: number for number, request_id in enumerate(workload.requests)}
        self._joins: list[_Join] = []
        """A heap of those that are known to come."""
        self._aborts: list[tuple[float, str]] = []
        """A heap of aborts, which come a time after the arrival."""
        self._latest_arrival = -math.inf, -math.inf
        """The latest arrival time so far, as recorded and as replayed."""
        self._followers: dict[str, tuple[str, float]] = {}
        """By request, the one that waits for its end, and the seconds from there to its arrival."""

    @property
    def is_recorded(self) -> bool:
        """True if more than the figures of the run is wanted, such as its texts."""
        return self._recording is not None

    def publish(self, event: Event) -> None:
        """Receives a message of the scheduler."""
        self._counter.count(event)
        if self._recording is not None:
            self._recording.publish(event)
        if isinstance(event, RequestFinished):
            self._end(event.request_id, event.time)

    def seconds(self, size: Size) -> float:
        """Returns the duration of the present step; the scheduler's model calls this."""
        model, index = self._options.step_time, self._result.num_steps
        if model is not None:
            seconds = model.step_seconds(size)
            self._seconds += seconds
            if model.is_extrapolation(size):
                self._result.num_extrapolated += 1
                self._seconds_extrapolated += seconds
            return seconds
        return self._workload.steps[index].seconds if index < len(self._workload.steps) else 0.0

    def run(self, scheduler: ReplayedScheduler) -> ReplayResult:
        """Replays the workload to its end."""
        if self._options.step_time is None:
            self._repeat(scheduler)
        elif self._options.arrivals == "step":
            self._run_by_step(scheduler, self._options.step_time)
        else:
            self._run_by_time(scheduler, self._options.step_time)
        self._result.figures = self._counter.figures()
        self._result.figures.num_requests += len(self._result.refused)
        if self._seconds > 0:
            self._result.share_extrapolated = self._seconds_extrapolated / self._seconds
        return self._result

    def _repeat(self, scheduler: ReplayedScheduler) -> None:
        """Runs the recorded steps, at the recorded times."""
        if self._workload.steps[0].num_processed is not None:
            self._repeat_calls(scheduler)
            return
        for recorded in self._workload.steps:
            self._clock.now = recorded.start_time
            self._give_recorded(scheduler, recorded, 0.0)
            self._step(scheduler)  # the recorded engine may have run it without any request

    def _run_by_step(self, scheduler: ReplayedScheduler, model: StepTime) -> None:
        """Gives the scheduler before each step what it was given before that step."""
        self._clock.now = self._workload.steps[0].start_time
        steps = self._workload.steps
        for recorded, following in zip_longest(steps, steps[1:]):
            self._give_recorded(scheduler, recorded, self._clock.now - recorded.start_time)
            if scheduler.has_work:
                self._step(scheduler)
            if following is not None and recorded.is_idle_after and not scheduler.has_work:
                self._clock.now += max(following.start_time - recorded.end_time, 0.0)
            else:
                num_arrived = len(following.arrived) if following is not None else 0
                self._clock.now += model.gap_seconds(num_arrived)
        while scheduler.has_work:  # with other settings, it may take longer
            self._step(scheduler)
            self._clock.now += model.gap_seconds(0)

    def _give_recorded(
        self, scheduler: ReplayedScheduler, recorded: TimedStep, later: float
    ) -> None:
        """Gives what the engine was given before a recorded step, by `later` seconds later."""
        for _, call in recorded.controls:
            scheduler.control(call)
        self._give(scheduler, recorded.arrived, recorded.aborted, later)
        for request_id in recorded.aborted_during:
            self._abort(scheduler, request_id, during_step=True)

    def _give(
        self,
        scheduler: ReplayedScheduler,
        arrived: list[str],
        aborted: list[str],
        later: float = 0.0,
    ) -> None:
        """Gives arrivals, by `later` seconds later than they were recorded, and aborts."""
        for request_id in arrived:
            arrival_time = self._workload.requests[request_id].arrival.arrival_time
            self._add(scheduler, request_id, self._delayed(arrival_time, later))
        for request_id in aborted:
            self._abort(scheduler, request_id)

    def _delayed(self, arrival_time: float, later: float) -> float:
        """Returns a later time, so that the order of all arrival times stays the same."""
        latest, delayed = self._latest_arrival
        if arrival_time < latest:
            return min(arrival_time + later, math.nextafter(delayed, -math.inf))
        if arrival_time > latest:
            delayed = max(arrival_time + later, math.nextafter(delayed, math.inf))
            self._latest_arrival = arrival_time, delayed
        return delayed

    def _repeat_calls(self, scheduler: ReplayedScheduler) -> None:
        """Repeats the calls of a scheduler that may be ahead of the outputs, all in their order."""
        requests, late = self._workload.requests, list[str]()
        for recorded in self._workload.steps:
            inputs: list[tuple[int, ControlCall | tuple[list[str], list[str]]]] = [
                *recorded.controls,
                *(
                    (requests[name].num_processed_at_abort, ([], [name]))
                    for name in (*late, *recorded.aborted)
                ),
                *((requests[name].num_processed, ([name], [])) for name in recorded.arrived),
            ]
            for num_processed, given in sorted(inputs, key=itemgetter(0)):
                self._cut(scheduler, scheduler.process_outputs(num_processed))
                if isinstance(given, ControlCall):
                    scheduler.control(given)
                else:
                    self._give(scheduler, *given)
            self._cut(scheduler, scheduler.process_outputs(recorded.num_processed or 0))
            self._clock.now = recorded.start_time
            scheduler.schedule()
            self._result.num_steps += 1
            self._show_progress()
            late = recorded.aborted_during
        self._cut(scheduler, scheduler.process_outputs(len(self._workload.steps)))

    def _run_by_time(self, scheduler: ReplayedScheduler, model: StepTime) -> None:
        """Gives the scheduler what has arrived when a step starts."""
        if any(recorded.controls for recorded in self._workload.steps):
            raise WorkloadError(
                "the engine was paused, or its prefix cache was reset: arrivals can be repeated by"
                " step only"
            )
        self._expect_arrivals()
        while scheduler.has_work or self._joins:
            if not scheduler.has_work:
                self._clock.now = max(self._clock.now, self._joins[0].time + model.per_wakeup)
            self._give_due(scheduler)
            if scheduler.has_work:
                self._step(scheduler)
                num_arrived = self._give_due(scheduler)
                self._clock.now += model.gap_seconds(num_arrived)

    def _expect_arrivals(self) -> None:
        """Fills the heap of arrivals with those that depend on nothing."""
        requests = self._workload.requests
        awaited: dict[str, str] = {}
        if self._options.arrivals == "closed-loop":
            awaited = predecessors(requests)
            for after, before in awaited.items():
                ended_at = requests[before].ended_at
                assert ended_at is not None
                delay = max(requests[after].arrival.arrival_time - ended_at, 0.0)
                self._followers[before] = after, delay
        else:
            for name, request in requests.items():
                if request.follows is not None:
                    awaited[name] = request.follows
                    delay = request.delay / self._options.scale_arrivals
                    self._followers[request.follows] = name, delay
        self._result.num_following = len(awaited)
        first = min(request.arrival.arrival_time for request in requests.values())
        for request_id, request in requests.items():
            if request_id not in awaited:
                since = request.arrival.arrival_time - first
                self._expect(request_id, first + since / self._options.scale_arrivals)

    def _expect(self, request_id: str, arrival_time: float) -> None:
        request = self._workload.requests[request_id]
        join = _Join(
            arrival_time + request.lag, self._numbers[request_id], request_id, arrival_time
        )
        heapq.heappush(self._joins, join)

    def _give_due(self, scheduler: ReplayedScheduler) -> int:
        """Gives what is due at the present time; returns the number of arrivals."""
        now, count = self._clock.now, 0
        while self._joins and self._joins[0].time <= now:
            join = heapq.heappop(self._joins)
            count += 1
            self._add(scheduler, join.request_id, join.arrival_time)
            patience = self._workload.requests[join.request_id].patience
            if patience is not None:
                heapq.heappush(self._aborts, (join.arrival_time + patience, join.request_id))
        while self._aborts and self._aborts[0][0] <= now:
            self._abort(scheduler, heapq.heappop(self._aborts)[1])
        return count

    def _add(self, scheduler: ReplayedScheduler, request_id: str, arrival_time: float) -> None:
        if request_id in self._without:
            self._end(request_id, arrival_time)
            return
        try:
            scheduler.add(self._workload.requests[request_id], arrival_time)
        except ValueError as error:
            self._result.refused[request_id] = str(error)
            self._end(request_id, arrival_time)

    def _abort(
        self, scheduler: ReplayedScheduler, request_id: str, *, during_step: bool = False
    ) -> None:
        if request_id not in self._without:
            scheduler.abort(request_id, during_step=during_step)

    def _end(self, request_id: str, time: float) -> None:
        """Lets the request arrive that waits for the end of this one."""
        self._num_ended += 1
        if request_id in self._followers:
            follower, delay = self._followers.pop(request_id)
            self._expect(follower, time + delay)

    def _step(self, scheduler: ReplayedScheduler) -> None:
        exhausted = scheduler.step()
        self._result.num_steps += 1
        self._cut(scheduler, exhausted)
        self._show_progress()

    def _cut(self, scheduler: ReplayedScheduler, exhausted: list[str]) -> None:
        for request_id in exhausted:
            scheduler.abort(request_id)
            self._result.cut[request_id] = self._clock.now

    def _show_progress(self) -> None:
        self._progress(self._num_ended / max(len(self._numbers), 1))
