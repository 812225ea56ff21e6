"""The replay of a workload by a scheduler that takes two steps for each request."""

from __future__ import annotations

import math

import pytest

from seqtop.history.step_time import Size, StepTime
from seqtop.history.timed_steps import TimedStep
from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.whatif.replay import Clock, ReplayOptions, ReplayResult, WorkloadReplay
from seqtop.whatif.workload import Answer, Workload, WorkloadRequest
from seqtop.wire.messages import RequestFinished
from tests.support.events import arrival, engine_info

STOPPED, ABORTED = SequenceStatus.FINISHED_STOPPED, SequenceStatus.FINISHED_ABORTED
TIMES = StepTime(
    per_step=1.0,
    per_prefill_token=0.0,
    per_decode_token=0.0,
    per_gap=0.25,
    per_arrival=0.5,
    per_wakeup=0.125,
    largest=Size(0, 1),
)


class TwoStepScheduler:
    """A scheduler that runs all requests together, and writes down what it is given."""

    def __init__(self, workload: Workload, options: ReplayOptions) -> None:
        self._clock = Clock()
        self.progress: list[float] = []
        self._replay = WorkloadReplay(workload, options, self._clock, progress=self.progress.append)
        self._left: dict[str, int] = {}
        self.given: list[tuple[float, str, str]] = []
        """The time, what was done, and the request."""
        self.arrivals: dict[str, float] = {}

    def run(self) -> ReplayResult:
        return self._replay.run(self)  # type: ignore[arg-type]

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def add(self, request: WorkloadRequest, arrival_time: float) -> None:
        name = request.arrival.request_id
        if request.arrival.priority:
            raise ValueError("it has a priority")
        self._left[name], self.arrivals[name] = 2, arrival_time
        self.given.append((self._clock.now, "add", name))

    def abort(self, request_id: str, *, during_step: bool = False) -> None:
        self._left.pop(request_id, None)
        self.given.append((self._clock.now, "abort", request_id))

    def step(self) -> list[str]:
        self._clock.now += self._replay.seconds(Size(0, len(self._left)))
        for name in [*self._left]:
            self._left[name] -= 1
            if not self._left[name]:
                del self._left[name]
                self.given.append((self._clock.now, "end", name))
                metrics = RequestMetrics(
                    self.arrivals[name], 0.0, None, None, None, self._clock.now
                )
                self._replay.publish(RequestFinished(name, self._clock.now, STOPPED, metrics))
        return []


def workload(*steps: TimedStep, **requests: WorkloadRequest) -> Workload:
    return Workload(engine_info(), requests={**requests}, steps=[*steps])


def request(number: int, time: float, **fields: object) -> WorkloadRequest:
    event = arrival(number)
    event.request_id, event.arrival_time = f"r{number}", time
    own = WorkloadRequest(event, Answer(), status=STOPPED, joined_at=time)
    for name, value in fields.items():
        setattr(own, name, value)
    return own


def test_requests_arrive_by_time_or_after_the_end_of_another_one() -> None:
    late = request(4, 104.0)
    late.arrival.priority = 1
    scheduler = TwoStepScheduler(
        workload(
            r1=request(1, 100.0),
            r2=request(2, 100.0, follows="r1", delay=2.0),
            r3=request(3, 104.0, status=ABORTED, ended_at=104.5),
            r4=late,
        ),
        ReplayOptions(step_time=TIMES, arrivals="time", scale_arrivals=2.0),
    )
    result = scheduler.run()
    assert scheduler.given == [
        (100.125, "add", "r1"),  # the engine is woken
        (102.375, "end", "r1"),
        (102.375, "add", "r3"),
        (103.625, "add", "r2"),  # a gap, and the time of two arrivals
        (103.625, "abort", "r3"),  # half a second after its arrival, seen at the next step
        (105.875, "end", "r2"),
    ]
    assert scheduler.arrivals == {"r1": 100.0, "r3": 102.0, "r2": 103.375}
    assert (result.num_steps, result.num_following) == (4, 1)
    assert (result.refused, result.num_extrapolated) == ({"r4": "it has a priority"}, 0)
    assert result.figures.num_requests == 3, "refused ones count"


def test_requests_arrive_before_the_same_steps() -> None:
    steps = (
        TimedStep(["r1"], [], 100.0, 101.0, 0, 1),
        TimedStep(["r2", "r3"], [], 101.5, 102.5, 0, 1),
        TimedStep([], ["r3"], 102.5, 103.5, 0, 1, is_idle_after=True),
        TimedStep(["r4"], [], 110.0, 111.0, 0, 1),
    )
    own = {f"r{number}": request(number, 99.0 + number) for number in range(1, 5)}
    scheduler = TwoStepScheduler(
        workload(*steps, **own),
        ReplayOptions(step_time=TIMES, arrivals="step", without=["r2"]),
    )
    result = scheduler.run()
    assert scheduler.given == [
        (100.0, "add", "r1"),
        (102.25, "add", "r3"),  # a gap, and the time of two arrivals
        (103.25, "end", "r1"),
        (103.5, "abort", "r3"),
        (110.0, "add", "r4"),  # as long after the end of the step as in the recording
        (112.25, "end", "r4"),
    ]
    assert result.num_steps == 4
    assert (result.num_extrapolated, result.share_extrapolated) == (1, pytest.approx(0.25))


def test_a_request_that_arrives_or_is_aborted_when_a_step_ends_is_so_for_the_next_one() -> None:
    scheduler = TwoStepScheduler(
        workload(
            r1=request(1, 100.0),
            r2=request(2, 101.125),
            r3=request(3, 100.0, status=ABORTED, ended_at=101.125),
        ),
        ReplayOptions(step_time=TIMES, arrivals="time"),
    )
    scheduler.run()
    assert scheduler.given == [
        (100.125, "add", "r1"),
        (100.125, "add", "r3"),
        (101.125, "add", "r2"),
        (101.125, "abort", "r3"),
        (102.875, "end", "r1"),  # a gap and the time of an arrival after the first step
        (104.125, "end", "r2"),
    ]
    thirds = [number / 3 for number in (0, 1, 2)]
    assert scheduler.progress == thirds, "the share of the requests that have ended"


def test_requests_of_a_closed_loop_arrive_after_the_end_of_another_one() -> None:
    """As long after it as in the recording; the first ones at their times."""
    scheduler = TwoStepScheduler(
        workload(
            r1=request(1, 100.0, ended_at=110.0),
            r2=request(2, 112.0, ended_at=120.0),
            r3=request(3, 120.0, ended_at=121.0),
        ),
        ReplayOptions(step_time=TIMES, arrivals="closed-loop", scale_arrivals=2.0),
    )
    result = scheduler.run()
    assert scheduler.given == [
        (100.125, "add", "r1"),
        (102.375, "end", "r1"),
        (104.5, "add", "r2"),  # two seconds later, and the engine is woken
        (106.75, "end", "r2"),
        (106.75, "add", "r3"),
        (109.75, "end", "r3"),
    ]
    assert scheduler.arrivals == {"r1": 100.0, "r2": 104.375, "r3": 106.75}
    assert (result.num_following, result.num_steps) == (2, 6)


@pytest.mark.parametrize(("pause", "begins_at"), [(0.0, 102.25), (0.5, 102.75), (-0.5, 102.25)])
def test_the_engine_idles_as_long_as_in_the_recording(pause: float, begins_at: float) -> None:
    steps = (
        TimedStep(["r1"], [], 100.0, 101.0, 0, 1),
        TimedStep([], [], 101.0, 102.0, 0, 1, is_idle_after=True),
        TimedStep(["r2"], [], 102.0 + pause, 103.0, 0, 1),
    )
    scheduler = TwoStepScheduler(
        workload(*steps, r1=request(1, 100.0), r2=request(2, 102.0)),
        ReplayOptions(step_time=TIMES, arrivals="step"),
    )
    scheduler.run()
    assert scheduler.given[:3] == [
        (100.0, "add", "r1"),
        (102.25, "end", "r1"),
        (begins_at, "add", "r2"),
    ]


def test_arrivals_keep_their_order_when_steps_are_faster_than_recorded() -> None:
    steps = (
        TimedStep(["r1"], [], 100.0, 103.0, 0, 1),
        TimedStep(["r2"], [], 103.0, 106.0, 0, 1),
        TimedStep(["r3"], [], 106.0, 109.0, 0, 1),
    )
    own = {
        f"r{number}": request(number, time) for number, time in ((1, 99.5), (2, 100.5), (3, 110.0))
    }
    scheduler = TwoStepScheduler(
        workload(*steps, **own), ReplayOptions(step_time=TIMES, arrivals="step")
    )
    scheduler.run()
    assert scheduler.arrivals == {
        "r1": 99.5,
        "r2": math.nextafter(99.5, math.inf),  # 1.25 s earlier, it would be before the first one
        "r3": 107.5,
    }
