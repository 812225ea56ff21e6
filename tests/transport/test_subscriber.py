"""The viewer's end over real sockets, against an engine end that errs on command."""

import pytest

from seqtop.live.session import Session
from seqtop.transport import subscriber
from seqtop.transport.connection import ConnectionState
from seqtop.wire import codec, frames
from seqtop.wire.messages import (
    EngineStopped,
    Heartbeat,
)
from tests.support.events import arrival, engine_info
from tests.support.hand_driven import HandDrivenEngine, joined, same
from tests.support.waiting import SECONDS, wait_until


def test_late_joiner_has_what_came_before_and_what_comes_after(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine:
        engine.send(engine_info())
        engine.send(arrival(1))
        with Session(endpoint) as session:
            joined(engine, session)
            assert same(session.state, engine.state)
            engine.send(arrival(2))
            wait_until(lambda: session.sequence_number == 2)
            assert same(session.state, engine.state)
            assert session.connection.num_missed == session.connection.num_resyncs == 0


def test_only_the_first_message_makes_a_viewer_ask_for_the_state(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case in which no welcome message says that an engine is there."""
    monkeypatch.setattr(subscriber, "_FIRST_RETRY_SECONDS", 2 * SECONDS)
    monkeypatch.setattr(subscriber, "_RETRY_SECONDS", 2 * SECONDS)
    with HandDrivenEngine(endpoint, welcomes=False) as engine, Session(endpoint) as session:
        engine.await_viewer()
        for event in (engine_info(), arrival(1), arrival(2)):
            engine.send(event)
        wait_until(lambda: session.connection.num_messages == 3)
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert same(session.state, engine.state)
        assert not engine.router.poll(0), "it asked more than once"


def test_gap_is_counted_and_healed(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(engine_info())
        for number in range(1, 4):
            engine.send(arrival(number), lose=True)
        engine.send(arrival(4))
        wait_until(lambda: session.connection.state is ConnectionState.SYNCING)
        assert "3 messages were missed" in session.connection.detail
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert same(session.state, engine.state)
        assert session.connection.num_missed == 3
        assert session.connection.num_resyncs == 1


def test_a_gap_between_the_messages_that_came_before_the_snapshot_is_counted_once(
    endpoint: str,
) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(engine_info())
        engine.send(arrival(1), lose=True)
        early = engine.reply()
        engine.send(arrival(2))
        for number in range(3, 6):
            engine.send(arrival(number), lose=number == 4)
        later = engine.reply()
        for number in range(6, 8):
            engine.send(arrival(number))
        wait_until(lambda: session.connection.num_messages == 6)
        engine.answer(early)
        wait_until(lambda: session.sequence_number == 3)
        assert session.connection.state is ConnectionState.SYNCING
        assert session.connection.detail == "1 message was missed"
        engine.answer(later)
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert same(session.state, engine.state)
        assert session.connection.num_missed == 2
        assert session.connection.num_resyncs == 2


def test_repeated_message_changes_nothing(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(engine_info())
        engine.send_frames(frames.pack("one", 0, codec.encode(engine_info(model="other"))))
        engine.send(arrival(1))
        wait_until(lambda: session.sequence_number == 1)
        assert same(session.state, engine.state)


def test_unreadable_message_is_named_and_healed(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send_frames(frames.pack("one", 0, b"\xc1 not msgpack"))
        wait_until(lambda: session.connection.state is ConnectionState.SYNCING)
        assert session.connection.num_errors == 1
        assert "could not be read" in session.connection.detail
        engine.send(engine_info())
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert same(session.state, engine.state)


def test_a_message_of_something_else_is_an_error_that_is_seen(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        version = session.version
        engine.send_frames([b"hello"])
        assert session.wait_for_change(version, SECONDS)
        assert session.connection.num_errors == 1
        assert session.connection.state is ConnectionState.LIVE


def test_goodbye_is_shown(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(EngineStopped(time=5.0, reason="maintenance"))
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
        assert session.connection.detail == "maintenance"


def test_an_engine_that_stops_before_its_snapshot_is_shown_as_stopped(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends none any more, and the question for one is not repeated."""
    monkeypatch.setattr(subscriber, "_FIRST_RETRY_SECONDS", 0.1)
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(engine_info())
        engine.send(arrival(1), lose=True)
        engine.send(EngineStopped(time=5.0, reason="maintenance"))
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
        assert session.connection.detail == "maintenance"
        engine.send(Heartbeat(time=6.0, step=1))  # it did not, or another has begun
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert same(session.state, engine.state)


def test_silence_is_noticed_and_forgiven(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriber, "SILENCE_SECONDS", 0.1)
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(arrival(1))
        assert session.wait_for(ConnectionState.LOST, timeout=SECONDS)
        assert "req-1" in session.state.requests  # what was seen stays
        monkeypatch.setattr(subscriber, "SILENCE_SECONDS", 60.0)
        engine.send(Heartbeat(time=4.0, step=3))
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)


def test_silence_is_noticed_while_a_snapshot_is_awaited(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        joined(engine, session)
        engine.send(arrival(1), lose=True)
        engine.send(arrival(2))
        assert session.wait_for(ConnectionState.SYNCING, timeout=SECONDS)
        monkeypatch.setattr(subscriber, "SILENCE_SECONDS", 0.1)
        assert session.wait_for(ConnectionState.LOST, timeout=SECONDS)


def test_a_snapshot_that_takes_its_time_is_said_to_be_received(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        wait_until(lambda: session.connection.detail.startswith("no engine answers"))
        engine.await_viewer()
        engine.answer(engine.snapshot(has_parts=True))
        wait_until(lambda: session.connection.detail.endswith("is being received"))
        assert session.connection.state is ConnectionState.CONNECTING
        engine.answer()  # the request is repeated when nothing follows
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        assert session.connection.detail == ""


def test_nobody_there_is_said_in_a_sentence(endpoint: str) -> None:
    with Session(endpoint) as session:
        wait_until(lambda: session.connection.detail)
        assert session.connection.state is ConnectionState.CONNECTING
        assert session.connection.detail == f"no engine answers at {endpoint} yet"
