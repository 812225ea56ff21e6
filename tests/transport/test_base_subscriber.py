"""Early messages and the end of a subscriber, and faults of its own."""

import threading

import pytest

from seqtop.history.memory_store import MemoryStore
from seqtop.live.session import Session
from seqtop.state.listener import StateChange
from seqtop.transport import base_subscriber, subscriber
from seqtop.transport.base_subscriber import PendingMessages
from seqtop.transport.connection import ConnectionState
from seqtop.wire.frames import Frame
from tests.support.events import arrival, engine_info, step
from tests.support.hand_driven import HandDrivenEngine, joined, same
from tests.support.waiting import SECONDS, wait_until


def test_a_fault_of_its_own_is_not_shown_as_live(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda hook: faults.append(hook.exc_value))

    class Faulty(MemoryStore):
        def record(self, change: StateChange) -> None:
            if change.event is not None:
                raise RuntimeError("a fault")

    with (
        HandDrivenEngine(endpoint) as engine,
        Session(endpoint, history=Faulty()) as session,
    ):
        joined(engine, session)
        engine.send(arrival(1))
        assert session.wait_for(ConnectionState.LOST, timeout=SECONDS)
        assert "seqtop has failed" in session.connection.detail
        assert "a fault" in session.connection.detail
        wait_until(lambda: [str(fault) for fault in faults] == ["a fault"])


def test_messages_that_arrive_before_the_snapshot_are_neither_lost_nor_applied_twice(
    endpoint: str,
) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        for event in (engine_info(), arrival(1), step(0)):
            engine.send(event)
        wait_until(lambda: session.connection.num_messages == 3)
        engine.answer()
        engine.send(step(1))
        wait_until(lambda: session.sequence_number == 3)
        assert same(session.state, engine.state)
        assert session.state.num_steps_seen == 2
        assert session.state.num_anomalies == 0


def test_messages_after_an_early_snapshot_are_applied_at_once(endpoint: str) -> None:
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send(engine_info())
        early = engine.reply()
        for number in range(3):
            engine.send(arrival(number))
        wait_until(lambda: session.connection.num_messages == 4)
        engine.answer(early)
        wait_until(lambda: session.sequence_number == 3)
        engine.send(arrival(3))
        wait_until(lambda: session.sequence_number == 4)
        assert same(session.state, engine.state)
        assert session.connection.num_missed == session.connection.num_resyncs == 0


def test_the_limit_itself_is_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_subscriber, "MAX_PENDING_BYTES", 4)
    monkeypatch.setattr(base_subscriber, "MAX_PENDING_MESSAGES", 3)
    first, second, third, fourth = (Frame("one", number, b"x") for number in range(4))
    pending = PendingMessages[Frame]()
    pending.add(first)
    pending.add(second)
    pending.add(third)
    assert pending.take() == [first, second, third]
    for frame in (first, second, third, fourth):
        pending.add(frame)
    assert pending.take() == [second, third, fourth], "the oldest is dropped"
    large = Frame("one", 4, b"1234")
    pending.add(large)
    assert pending.take() == [large]
    pending.add(large)
    pending.add(first)
    assert pending.take() == [first], "both are five bytes"


def test_viewer_keeps_so_many_bytes_while_it_waits_for_a_snapshot(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_subscriber, "MAX_PENDING_BYTES", 2_000)
    monkeypatch.setattr(subscriber, "_FIRST_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(subscriber, "_RETRY_SECONDS", 0.1)
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send(engine_info())
        early = engine.reply()
        for number in range(100):
            engine.send(arrival(number))
        wait_until(lambda: session.connection.num_messages == 101)
        engine.answer(early)  # what followed on it has been let go
        wait_until(lambda: session.connection.num_missed > 50)
        while session.connection.state is not ConnectionState.LIVE:
            engine.answer()
            session.wait_for(ConnectionState.LIVE, timeout=1)
        assert len(session.state.requests) == 100
