"""Gives a workload to a real scheduler again, step by step or at its times."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Literal, Protocol, TypeAlias

import msgspec

from seqtop.history.file_writer import FileWriter
from seqtop.state import EngineState
from seqtop.whatif.step_time import Size, StepTime
from seqtop.whatif.workload import Workload, WorkloadRequest
from seqtop.wire import codec, parsing
from seqtop.wire.messages import ControlCall, Event

Arrivals: TypeAlias = Literal["time", "step", "closed-loop"]
"""When requests arrive: at their recorded times, before the same steps as in the recording, or as
long after the end of an earlier request as they did."""


class ReplayOptions(msgspec.Struct, kw_only=True):
    """How a workload is replayed."""

    settings: dict[str, bool | int | float | str | None] = {}
    """Settings other than the recorded ones, by the engine's names."""
    arrivals: Arrivals = "step"
    scale_arrivals: float = 1.0
    """Requests arrive this many times as fast."""
    without: list[str] = []
    """Ids of requests that are left out."""
    step_time: StepTime | None = None
    """The model of the times of steps; `None` for the recorded times."""
    model: str | None = None
    """The directory of the model, if it is not where the recording says."""


class ReplayResult(msgspec.Struct, kw_only=True):
    """The result of a replay."""

    num_steps: int = 0
    num_extrapolated: int = 0
    """Steps that were larger than any recorded one."""
    cut: list[str] = []
    """Requests that were aborted since the recording has no more tokens of them."""
    refused: dict[str, str] = {}
    """Requests that the engine refused with these settings, with the reasons."""
    error: str | None = None
    """The reason why there is no result, in one sentence."""


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


class Scheduler(Protocol):
    """A real scheduler whose model returns recorded tokens. It publishes what it does."""

    def add(self, request: WorkloadRequest, arrival_time: float) -> None:
        """Adds a request.

        Raises:
            ValueError: The engine refuses the request.
        """

    def abort(self, request_id: str, *, during_step: bool = False) -> None:
        """Aborts a request, if it is unfinished: now, or after the next step is scheduled."""

    def control(self, call: ControlCall) -> None:
        """Repeats a call from outside."""

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


class RecordingSink:
    """Writes messages to a recording, as a viewer of the engine would.

    Args:
        writer: The recording; `None` to drop the messages.
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


class Replay:
    """A workload on its way through a scheduler.

    Args:
        workload: The workload.
        options: What is different.
        clock: The clock of the scheduler.
    """

    def __init__(self, workload: Workload, options: ReplayOptions, clock: Clock) -> None:
        self._workload = workload
        self._options = options
        self._clock = clock
        self._result = ReplayResult()
        self._unfinished: set[str] = set()
        self._without = {*options.without}

    def seconds(self, size: Size) -> float:
        """Returns the duration of the present step; the scheduler's model calls this."""
        model, index = self._options.step_time, self._result.num_steps
        if model is not None:
            self._result.num_extrapolated += model.is_extrapolation(size)
            return model.step_seconds(size)
        if index < len(self._workload.steps):
            recorded = self._workload.steps[index]
            return max(recorded.end_time - recorded.start_time, 0.0)
        return 0.0

    def run(
        self, scheduler: Scheduler, progress: Callable[[int], None] = lambda _: None
    ) -> ReplayResult:
        """Replays the workload to its end."""
        if self._options.arrivals == "step":
            self._run_by_step(scheduler, progress)
        else:
            self._run_by_time(scheduler, progress)
        return self._result

    def _run_by_step(self, scheduler: Scheduler, progress: Callable[[int], None]) -> None:
        """Gives the scheduler before each step what it was given before that step."""
        model = self._options.step_time
        if model is None and self._workload.steps[0].num_processed is not None:
            self._repeat_calls(scheduler)
            return
        for recorded in self._workload.steps:
            if model is None:
                self._clock.now = recorded.start_time
            for _, call in recorded.controls:
                scheduler.control(call)
            self._give(scheduler, recorded.arrived, recorded.aborted, recorded.aborted_during)
            # The recorded engine may have run a step without any request.
            if scheduler.has_work or model is None:
                self._step(scheduler, progress)
                if model is not None:
                    self._clock.now += model.gap_seconds(len(recorded.arrived))
        if model is not None:  # with other settings, it may take longer
            while scheduler.has_work:
                self._step(scheduler, progress)
                self._clock.now += model.gap_seconds(0)

    def _run_by_time(self, scheduler: Scheduler, progress: Callable[[int], None]) -> None:
        model = self._options.step_time
        assert model is not None
        if any(recorded.controls for recorded in self._workload.steps):
            raise ValueError(
                "the engine was paused, or its prefix cache was reset: arrivals can be repeated by"
                " step only"
            )
        joins = deque(sorted(self._joins(), key=lambda join: join[0]))
        aborts = deque(sorted(self._aborts()))
        self._clock.now = joins[0][0] if joins else 0.0
        while scheduler.has_work or joins:
            if not scheduler.has_work:
                self._clock.now = max(self._clock.now, joins[0][0])
            now = self._clock.now
            arrived: list[str] = []
            while joins and joins[0][0] <= now:
                arrived.append(joins.popleft()[1])
            aborted: list[str] = []
            while aborts and aborts[0][0] <= now:
                aborted.append(aborts.popleft()[1])
            self._give(scheduler, arrived, aborted)
            if scheduler.has_work:
                self._step(scheduler, progress)
                end = self._clock.now
                num_arriving = 0
                for time, _ in joins:
                    if time > end:
                        break
                    num_arriving += 1
                self._clock.now = end + model.gap_seconds(num_arriving)

    def _joins(self) -> list[tuple[float, str]]:
        """Returns when each request joins the queue."""
        # After the start of the step before, and at the latest at the start of the step.
        return [
            (self._scaled(math.nextafter(request.joined_at, math.inf)), request_id)
            for request_id, request in self._workload.requests.items()
        ]

    def _aborts(self) -> list[tuple[float, str]]:
        return [
            (self._scaled(request.ended_at), request_id)
            for request_id, request in self._workload.requests.items()
            if request.is_cut and request.ended_at is not None
        ]

    def _scaled(self, time: float) -> float:
        first = next(iter(self._workload.requests.values())).arrival.arrival_time
        return first + (time - first) / self._options.scale_arrivals

    def _give(
        self,
        scheduler: Scheduler,
        arrived: list[str],
        aborted: list[str],
        aborted_during: list[str] | None = None,
    ) -> None:
        for request_id in arrived:
            if request_id in self._without:
                continue
            request = self._workload.requests[request_id]
            try:
                scheduler.add(request, self._scaled(request.arrival.arrival_time))
            except ValueError as error:
                self._result.refused[request_id] = str(error)
        for request_id in aborted:
            if request_id not in self._without:
                scheduler.abort(request_id)
        for request_id in aborted_during or ():
            if request_id not in self._without:
                scheduler.abort(request_id, during_step=True)

    def _repeat_calls(self, scheduler: Scheduler) -> None:
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
            late = recorded.aborted_during
        self._cut(scheduler, scheduler.process_outputs(len(self._workload.steps)))

    def _step(self, scheduler: Scheduler, progress: Callable[[int], None]) -> None:
        exhausted = scheduler.step()
        self._result.num_steps += 1
        self._cut(scheduler, exhausted)
        progress(self._result.num_steps)

    def _cut(self, scheduler: Scheduler, exhausted: list[str]) -> None:
        for request_id in exhausted:
            scheduler.abort(request_id)
            self._result.cut.append(request_id)
