"""Checks of a live stream: what a session receives, and what it misses."""

import threading
from contextlib import ExitStack
from typing import Any

from seqtop.checks import live_report
from seqtop.checks.live_checker import LiveChecker
from seqtop.live.session import Session
from seqtop.transport.connection import ConnectionState
from tests.support.events import arrival, engine_info, stats, step
from tests.support.hand_driven import HandDrivenEngine, joined
from tests.support.waiting import wait_until


def test_events_are_checked_and_a_gap_is_counted(endpoint: str) -> None:
    session = Session(endpoint)
    checker = LiveChecker(session)
    with HandDrivenEngine(endpoint) as engine, ExitStack() as checking:
        engine.send(engine_info())
        checking.enter_context(checker.running())
        with session:
            joined(engine, session)
            engine.send(arrival(1))
            engine.send(step(0, stats=stats(num_free_blocks=63)))
            engine.send(step(1))
            wait_until(lambda: checker.num_steps == 2)
            assert checker.counts() == {"pool-sum": 1}
            engine.send(step(2), lose=True)
            engine.send(step(3))
            engine.answer()
            wait_until(lambda: session.sequence_number == 5)
            with session.lock:  # until it has been checked, too
                assert (checker.num_gaps, checker.ends_in_gap) == (1, False)
            num_events = checker.num_events
            checking.close()
            engine.send(step(4))
            wait_until(lambda: session.sequence_number == 6)
    assert (checker.num_findings, checker.num_events) == (1, num_events)


class _NeverStops:
    """A session that notes for how long it is waited for, and in which the engine goes on."""

    def __init__(self) -> None:
        self.timeouts: list[float] = []

    def wait_for(self, state: ConnectionState, *, timeout: float) -> bool:
        assert state is ConnectionState.STOPPED
        self.timeouts.append(timeout)
        return not threading.Event().wait(timeout) and len(self.timeouts) == 100


def test_a_check_ends_with_its_duration() -> None:
    session: Any = _NeverStops()
    live_report._wait(session, threading.Event(), 0.02)
    assert session.timeouts
    assert max(session.timeouts) <= 0.02
    ended = threading.Event()
    ended.set()
    live_report._wait(session, ended, None)
    session.timeouts = [0.0] * 99
    live_report._wait(session, threading.Event(), None)
    assert session.timeouts[99:] == [0.2], "it ends with the engine"
