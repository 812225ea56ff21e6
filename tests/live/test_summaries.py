"""Sessions that have a summary a second of an engine, instead of its stream."""

from __future__ import annotations

import msgspec
import pytest

from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport import stream_server, subscriber
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire import codec
from seqtop.wire.messages import EngineInfo, EngineSummary, Heartbeat, Refused, SummaryRequest
from tests.support.events import arrival, engine_info
from tests.support.hand_driven import HandDrivenEngine
from tests.support.simulated_scheduler import SimulatedScheduler
from tests.support.waiting import wait_until

LIVE = ConnectionState.LIVE


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests twenty summaries a second, so that no test waits for one."""
    monkeypatch.setattr(subscriber, "SECONDS_BETWEEN_SUMMARIES", 0.05)
    monkeypatch.setattr(stream_server, "SECONDS_BETWEEN_SUMMARIES", 0.04)


def busy(**changes: object) -> SimulatedScheduler:
    run = SimulatedScheduler(
        engine_id="llama-70b-prod-7", model="meta-llama/Llama-3.1-70B-Instruct", **changes
    )
    for number in range(400):
        run.add(f"chatcmpl-{number}", 500, 150)
    run.steps(40)
    return run


def test_a_summary_a_second_in_place_of_the_stream(endpoint: str) -> None:
    run = busy(num_gpu_blocks=40_000, max_num_seqs=256)
    with MessagePublisher(endpoint, run.info, EngineState()) as engine:
        for event in run.events:
            engine.publish(event)
        with Session(endpoint, is_subscribed=False) as session:
            wait_until(lambda: session.summary is not None and session.summary.num_waiting > 0)
            summary, connection = session.summary, session.connection
            assert summary is not None
            assert summary.engine_id == "llama-70b-prod-7"
            assert connection.state is LIVE
            assert not session.state.requests
            engine.publish(Heartbeat(time=summary.time + 10.0, step=summary.step))
            wait_until(lambda: session.summary is not None and session.summary.step_rate == 0)
            assert connection.num_bytes / connection.num_messages <= 300
            assert engine.has_viewers
            assert connection.num_errors == 0


def follow_and_leave(engine: MessagePublisher, session: Session, number: int) -> None:
    session.set_subscribed(True)
    wait_until(lambda: session.summary is None and session.connection.state is LIVE)
    assert f"req-{number - 1}" in session.state.requests
    engine.publish(arrival(number))
    wait_until(lambda: f"req-{number}" in session.state.requests)
    session.set_subscribed(False)
    wait_until(lambda: session.summary is not None and session.summary.num_waiting == number)
    assert session.connection.state is LIVE


def test_an_engine_that_is_looked_at_is_followed_and_then_left(endpoint: str) -> None:
    with (
        MessagePublisher(endpoint, engine_info(), EngineState()) as engine,
        Session(endpoint, is_subscribed=False) as session,
    ):
        wait_until(lambda: session.summary is not None)
        engine.publish(arrival(1))
        follow_and_leave(engine, session, 2)
        follow_and_leave(engine, session, 3)
        assert session.connection.num_errors == 0


def test_the_last_summary_says_that_the_engine_stopped(endpoint: str) -> None:
    with Session(endpoint, is_subscribed=False) as session:
        with MessagePublisher(endpoint, engine_info(), EngineState()) as engine:
            wait_until(lambda: session.summary is not None)
            engine.close("it is enough")
        wait_until(lambda: session.connection.state is ConnectionState.STOPPED)
        assert session.connection.detail == "it is enough"
        with MessagePublisher(endpoint, engine_info(incarnation="two"), EngineState()):
            wait_until(lambda: session.connection.state is LIVE)


def answered(engine: HandDrivenEngine, reply: object) -> None:
    question = engine.answer(reply)
    assert codec.decode(question, SummaryRequest) == SummaryRequest()


def test_an_engine_without_summaries_is_followed(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint, is_subscribed=False) as session:
        answered(engine, Refused(error="the request cannot be read: no such command"))
        engine.await_viewer()
        engine.send(engine_info())
        engine.answer()
        wait_until(lambda: session.connection.state is LIVE)
        assert session.summary is None
        engine.send(arrival(1))
        wait_until(lambda: "req-1" in session.state.requests)


def test_an_engine_that_answers_something_else_is_followed(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "SILENCE_SECONDS", 0.1)
    with HandDrivenEngine(endpoint) as engine, Session(endpoint, is_subscribed=False) as session:
        engine.state.apply(engine_info())
        engine.answer()
        engine.await_viewer()  # it has subscribed
        assert not session.state.info, "it asked for no snapshot so far"


def test_answers_that_cannot_be_read_are_counted(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint, is_subscribed=False) as session:
        summary = EngineSummary(time=1.0, engine_id="x" * 5_000, model="m")
        answered(engine, summary)
        wait_until(lambda: session.connection.num_errors == 1)
        assert "its summary cannot be used" in session.connection.last_error
        assert session.summary is None
        answered(engine, EngineSummary(time=float("nan"), engine_id="x", model="m"))
        wait_until(lambda: session.summary is not None)


def test_a_redacted_engine_has_no_text_in_its_summary(endpoint: str) -> None:
    info = engine_info(redacted=True)
    assert isinstance(info, EngineInfo)
    with MessagePublisher(endpoint, info, EngineState()) as engine:
        engine.publish(msgspec.structs.replace(arrival(1), prompt="a secret"))
        with Session(endpoint, is_subscribed=False) as session:
            wait_until(lambda: session.summary is not None and session.summary.num_waiting == 1)
            assert b"secret" not in codec.encode(session.summary)
