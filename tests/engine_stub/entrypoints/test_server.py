"""The server of an engine: commands of viewers, its own workload, and further sources."""

from collections.abc import Callable

import pytest

from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.server import EngineServer
from engine_stub.entrypoints.workload import Arrival
from engine_stub.step_record import StepRecord
from seqtop.sequence import SamplingParams
from seqtop.transport.publisher import PendingCommand
from seqtop.wire.messages import (
    Abort,
    Accepted,
    Event,
    Refused,
    Reply,
    RequestArrived,
    RequestFinished,
    Step,
    Submit,
)
from tests.support.running import greedy


class ScriptedPublisher:
    """A publisher with commands of its own, which keeps what is published and replied."""

    def __init__(self) -> None:
        self.pending: list[Submit | Abort] = []
        self.events: list[Event] = []
        self.replies: list[Reply] = []

    def wants_in_flight(self) -> bool:
        return False

    def publish(self, event: Event) -> None:
        self.events.append(event)

    def commands(self, timeout: float = 0) -> list[PendingCommand]:
        commands, self.pending = self.pending, []
        return [PendingCommand(command, self.replies.append) for command in commands]


@pytest.fixture
def publisher() -> ScriptedPublisher:
    return ScriptedPublisher()


def idle(engine: LLMEngine, ticks: int = 20) -> Callable[[], bool]:
    """Stops a server when its engine has no more requests, but not within its first `ticks`."""
    count = iter(range(10**6))
    return lambda: next(count) >= ticks and not engine.has_unfinished_requests()


def test_commands_are_carried_out_or_refused(make_engine, publisher: ScriptedPublisher) -> None:
    engine = make_engine()
    good = Submit(prompt="Once", sampling_params=greedy(3))
    bad = Submit(prompt="Once", sampling_params=SamplingParams(bad_words=["x"]))
    publisher.pending = [good, bad, Abort(request_id="nobody")]
    EngineServer(engine, publisher).run(idle(engine))
    accepted, refused, unknown = publisher.replies
    assert isinstance(accepted, Accepted)
    assert isinstance(refused, Refused)
    assert "bad_words" in refused.error
    assert unknown == Refused(error="there is no unfinished request nobody")
    arrived = [each for each in publisher.events if isinstance(each, RequestArrived)]
    ended = [each for each in publisher.events if isinstance(each, RequestFinished)]
    assert [each.request_id for each in arrived] == [accepted.request_id]
    assert [each.request_id for each in ended] == [accepted.request_id]


def test_the_workload_arrives_at_its_ticks(make_engine, publisher: ScriptedPublisher) -> None:
    engine = make_engine()
    workload = [
        Arrival(tick, name, "Once", SamplingParams(max_tokens=1))
        for tick, name in ((0, "a"), (0, "b"), (3, "c"), (9, "d"))
    ]
    EngineServer(engine, publisher, workload=workload).run(idle(engine))
    arrived = [each.request_id for each in publisher.events if isinstance(each, RequestArrived)]
    assert arrived == ["a", "b", "c", "d"]


def test_further_sources_add_requests_and_get_every_step(
    make_engine, publisher: ScriptedPublisher
) -> None:
    class Source:
        def __init__(self) -> None:
            self.num_steps = 0
            self.is_added = False

        def serve(self, server: EngineServer) -> None:
            if not self.is_added:
                server.add("mine", [1, 2, 3], greedy(4))
                self.is_added = True

        def stepped(self, record: StepRecord) -> None:
            self.num_steps += 1

    engine, source = make_engine(), Source()
    EngineServer(engine, publisher, sources=[source]).run(idle(engine))
    num_published = sum(isinstance(event, Step) for event in publisher.events)
    assert source.num_steps == num_published > 3
