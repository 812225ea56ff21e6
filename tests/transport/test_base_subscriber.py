"""The end of a subscriber, and faults of its own."""

import threading

import pytest

from seqtop.history.memory_store import MemoryStore
from seqtop.live.connection import ConnectionState
from seqtop.live.session import Session
from tests.support.hand_driven import HandDrivenEngine, arrival, joined
from tests.support.waiting import SECONDS, wait_until


def test_a_fault_of_its_own_is_not_shown_as_live(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda hook: faults.append(hook.exc_value))

    class Faulty(MemoryStore):
        def append(self, *_: object) -> None:
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
