"""The server of an engine: commands of viewers, its own workload, and further sources."""

import itertools
import time
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from engine_stub.engine import LLMEngine
from engine_stub.entrypoints import server
from engine_stub.entrypoints.server import EngineServer
from engine_stub.entrypoints.workload import Arrival
from engine_stub.step_record import StepRecord
from seqtop.sequence import SamplingParams
from seqtop.transport.publisher import PendingCommand
from seqtop.wire.messages import (
    Abort,
    Accepted,
    Refused,
    RequestArrived,
    RequestFinished,
    Step,
    Submit,
)
from seqtop.wire.snapshot import Reply
from tests.support.running import DirectPublisher, MakeEngine, Sink, greedy


class ScriptedPublisher(DirectPublisher):
    """A publisher with commands of its own, which keeps what is published and replied."""

    def __init__(self) -> None:
        sink = Sink()
        super().__init__(sink)
        self.events = sink.events
        self.pending: list[Submit | Abort] = []
        self.replies: list[Reply] = []

    def commands(self, timeout: float = 0.0) -> list[PendingCommand]:
        commands, self.pending = self.pending, []
        return [PendingCommand(command, self.replies.append) for command in commands]


@pytest.fixture
def publisher() -> ScriptedPublisher:
    return ScriptedPublisher()


def serving(engine: LLMEngine, publisher: Any, **options: Any) -> EngineServer:
    return EngineServer(engine, publisher, **options)


def idle(engine: LLMEngine, ticks: int = 20) -> Callable[[], bool]:
    """Stops a server when its engine has no more requests, but not within its first `ticks`."""
    count = iter(range(10**6))
    return lambda: next(count) >= ticks and not engine.has_unfinished_requests()


def test_commands_are_carried_out_or_refused(
    make_engine: MakeEngine, publisher: ScriptedPublisher
) -> None:
    engine = make_engine()
    good = Submit(prompt="Once", sampling_params=greedy(3), priority=5)
    bad = Submit(prompt="Once", sampling_params=SamplingParams(bad_words=["x"]))
    publisher.pending = [good, bad, Abort(request_id="unknown")]
    serving(engine, publisher).run(idle(engine))
    accepted, refused, unknown = publisher.replies
    assert isinstance(accepted, Accepted)
    assert isinstance(refused, Refused)
    assert "bad_words" in refused.error
    assert unknown == Refused(error="there is no unfinished request unknown")
    arrived = [event for event in publisher.events if isinstance(event, RequestArrived)]
    ended = [event for event in publisher.events if isinstance(event, RequestFinished)]
    assert [(event.request_id, event.priority) for event in arrived] == [(accepted.request_id, 5)]
    assert [event.request_id for event in ended] == [accepted.request_id]


def test_the_workload_arrives_at_its_ticks(
    make_engine: MakeEngine, publisher: ScriptedPublisher
) -> None:
    engine = make_engine()
    ticks = [(0, "a"), (0, "b"), (3, "c"), (9, "d")]
    workload = [Arrival(tick, name, "Once", SamplingParams(max_tokens=1)) for tick, name in ticks]
    num_events_before: list[int] = []  # each tick

    def stop() -> bool:
        num_events_before.append(len(publisher.events))
        return len(num_events_before) > 20

    serving(engine, publisher, workload=workload).run(stop)
    arrived = [
        (tick, event.request_id)
        for tick, bounds in enumerate(itertools.pairwise(num_events_before))
        for event in publisher.events[slice(*bounds)]
        if isinstance(event, RequestArrived)
    ]
    assert arrived == ticks


def test_further_sources_add_requests_and_get_every_step(
    make_engine: MakeEngine, publisher: ScriptedPublisher
) -> None:
    class Source:
        def __init__(self) -> None:
            self.num_steps = 0
            self.is_added = False

        def serve(self, engine_server: EngineServer) -> None:
            if not self.is_added:
                engine_server.add("mine", [1, 2, 3], greedy(4))
                self.is_added = True

        def stepped(self, record: StepRecord) -> None:
            self.num_steps += 1

    engine, source = make_engine(), Source()
    serving(engine, publisher, sources=[source]).run(idle(engine))
    num_published = sum(isinstance(event, Step) for event in publisher.events)
    assert source.num_steps == num_published > 3


@pytest.mark.parametrize("pace", [0.0, 10.0])  # slower than any machine
def test_a_step_says_how_long_the_engine_waited_on_purpose(
    make_engine: MakeEngine, publisher: ScriptedPublisher, pace: float
) -> None:
    engine = make_engine()
    publisher.pending = [Submit(prompt="Once", sampling_params=greedy(4))]
    serving(engine, publisher, pace=pace).run(idle(engine))
    first, *later = [event for event in publisher.events if isinstance(event, Step)]
    for before, step in pairwise([first, *later]):
        assert 0 <= step.stats.paced_time <= step.start_time - before.time
    assert any(step.stats.paced_time for step in later) == (pace > 0)


def test_commands_take_a_share_of_the_time_of_running_requests(
    make_engine: MakeEngine, publisher: ScriptedPublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that took ten seconds of work is the last one for minutes, while requests run."""
    engine = make_engine()
    work = iter(range(0, 10**6, 10))
    clock = SimpleNamespace(
        thread_time=lambda: next(work), monotonic=time.monotonic, sleep=time.sleep
    )
    monkeypatch.setattr(server, "time", clock)
    publisher.pending = [Submit(prompt="Once", sampling_params=greedy(9))]
    stopped = idle(engine, ticks=40)
    replies_while_running: list[int] = []

    def stop() -> bool:
        if engine.has_unfinished_requests():
            replies_while_running.append(len(publisher.replies))
            publisher.pending = publisher.pending or [Abort(request_id="unknown")]
        return stopped()

    serving(engine, publisher).run(stop)
    assert set(replies_while_running) == {1}
    assert len(publisher.replies) == 2  # when no request ran any more
