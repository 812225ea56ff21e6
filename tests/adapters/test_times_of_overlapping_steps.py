"""The parts of a step's and a request's time add up to elapsed time, also where steps overlap."""

import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.adapters.translate import Translator, engine_info
from seqtop.adapters.vllm.engine_description import describe
from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver
from seqtop.adapters.wrapping import Wrapping
from seqtop.history.recording import Recording
from seqtop.sequence import latency
from seqtop.state import EngineState
from seqtop.state.fields import waited
from seqtop.state.model import RequestState
from seqtop.state.step_summary import summarize
from seqtop.transport.publisher_settings import PublisherSettings
from seqtop.tui.screens.sequences.request_timeline import time_parts
from seqtop.wire import codec, parsing
from seqtop.wire.messages import RequestFinished, Step
from tests.support.fake_vllm import (
    AsyncScheduler,
    PipelinedScheduler,
    Request,
    Scheduler,
    step,
)

TESTS = Path(__file__).parents[1]
# The bundled engine of this one reports longer times than its steps take.
BUNDLED = TESTS / "golden" / "data" / "recordings" / "0.1.0.seqtop"
RECORDINGS = [BUNDLED, *sorted((TESTS / "stored_runs").glob("*.seqtop"))]

OVERLAPPING = {"vllm-async", "sglang", "transformers"}
"""The recordings of engines that schedule a step before the one before has ended."""


class Clock:
    """A clock that each reading advances."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self.now = rng, 1_000.0

    def __call__(self) -> float:
        self.now += self._rng.expovariate(1_000.0)
        return self.now


def events_of(kind: type[Scheduler], seed: int) -> tuple[EngineState, list[Any]]:
    rng = random.Random(seed)
    clock = Clock(rng)
    scheduler = kind(num_gpu_blocks=24)
    started, layout = describe(scheduler, PublisherSettings(bind="ipc:///e"))
    started.start_time = clock()
    translator, events, errors = Translator(started), list[Any](), list[Exception]()
    sink = SimpleNamespace(
        wants_all_requests=False,
        send=lambda observation: events.extend(
            parsing.event(codec.encode(event)) for event in translator.events(observation)
        ),
    )
    SchedulerObserver(
        scheduler, Wrapping(errors.append).wrap, sink, layout, clock=clock, timer=clock
    )
    for number in range(30):
        request = Request(
            f"{number}-{number:08x}",
            [number] * rng.randrange(1, 14),
            rng.randrange(1, 20),
            [1_000 + rng.randrange(8)],
        )
        request.arrival_time = clock()
        scheduler.add_request(request)
        for _ in range(rng.randrange(4)):
            step(scheduler)
    while scheduler.requests:
        step(scheduler)
    assert not errors
    state = EngineState()
    state.apply(engine_info(started))
    return state, events


class Sums:
    """Checks steps, in order, and counts those that overlap the one before."""

    def __init__(self) -> None:
        self.num_overlapping = 0
        self._last: Step | None = None

    def check(self, event: Step) -> None:
        last, self._last = self._last, event
        if last is None or event.step != last.step + 1:
            return
        summary = summarize(event, gap=event.start_time - last.time)
        parts = summary.parts
        assert math.isclose(summary.period, event.time - last.time, abs_tol=1e-6)
        assert math.isclose(sum(parts.values()), summary.period, abs_tol=1e-6)
        assert all(seconds >= 0.0 for seconds in parts.values())
        self.num_overlapping += summary.overlap > 0


def assert_parts_are_within(request: RequestState, end: float) -> None:
    metrics = request.metrics
    parts = metrics.scheduler_time or 0.0, metrics.model_execute_time or 0.0
    elapsed = end - metrics.arrival_time
    assert sum(parts) + waited(request, end) <= elapsed + 1e-6


def ratios(request: RequestState) -> tuple[float | None, float | None]:
    return latency.queue_ratio(request.metrics), latency.execute_ratio(request.metrics)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", [Scheduler, AsyncScheduler, PipelinedScheduler])
def test_parts_of_overlapping_steps_add_up(kind: type[Scheduler], seed: int) -> None:
    state, events = events_of(kind, seed)
    sums, num_ended = Sums(), 0
    for event in events:
        if isinstance(event, RequestFinished):
            # Viewers add up what the publisher does.
            shown, published = state.requests[event.request_id].metrics, event.metrics
            for name in ("scheduler_time", "model_execute_time"):
                total = getattr(published, name)
                assert math.isclose(getattr(shown, name) or 0.0, total or 0.0, abs_tol=1e-6)
            num_ended += 1
        state.apply(event)
        if isinstance(event, Step):
            sums.check(event)
        for request in state.requests.values():
            assert_parts_are_within(request, request.metrics.finished_time or state.time)
    assert num_ended == 30
    assert (sums.num_overlapping > 20) is (kind is not Scheduler)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_parts_of_a_recording_add_up(path: Path) -> None:
    sums, num_with_parts = Sums(), 0
    with Recording(path) as recording:
        for event, state in recording.states():
            sums.check(event)
            for request in state.requests.values():
                length = max((request.metrics.finished_time or state.time), event.time)
                length -= request.metrics.arrival_time
                parts = time_parts(request, length)
                num_with_parts += bool(parts)
                assert not parts or math.isclose(sum(dict(parts).values()), length, abs_tol=1e-6)
                assert all(0.0 <= seconds <= length for _, seconds in parts)
                assert all(ratio is None or ratio <= 1.0 + 1e-6 for ratio in ratios(request))
    assert num_with_parts > 0
    assert (sums.num_overlapping > 0) is (path.stem in OVERLAPPING)
