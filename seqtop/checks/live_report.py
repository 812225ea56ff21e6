"""Checks of running engines, and their reports.

They are in a module of their own: checking a recording needs no sockets, whose modules take as long
to load as hundreds of steps to check.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

from seqtop.checks.gate import Gate
from seqtop.checks.live_checker import LiveChecker
from seqtop.checks.protocol import ProtocolChecker
from seqtop.checks.report import Report, outcomes, report_of
from seqtop.checks.thresholds import DEFAULT_THRESHOLDS, Thresholds
from seqtop.history.memory_store import MemoryStore
from seqtop.live.session import Session
from seqtop.state.listener import Listener
from seqtop.transport.connection import ConnectionState
from seqtop.transport.curve_keys import ViewerKeys

__all__ = ["check_live", "check_protocol"]


def check_live(
    endpoint: str,
    *,
    ended: threading.Event,
    duration: float | None,
    timeout: float,
    keys: ViewerKeys | None = None,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    gates: Sequence[Gate] = (),
    listener: Listener | None = None,
) -> Report:
    """Checks a running engine until `ended` is set, for `duration` seconds, or until it stops.

    Args:
        endpoint: The endpoint of the engine's live stream.
        ended: Ends the check when it is set.
        duration: Seconds to check; `None` for no limit.
        timeout: Seconds to wait for the first state.
        keys: The viewer's CurveZMQ keys, if the engine requires any.
        thresholds: The thresholds of the rules.
        gates: What the stream has to satisfy besides.
        listener: Called with each change, to record the stream.

    Raises:
        EndpointError: `endpoint` is malformed.
        UnreachableError: No engine answered, or its messages cannot be read.
    """
    session = Session(endpoint, history=MemoryStore(max_bytes=0), keys=keys)
    checker = LiveChecker(session, thresholds=thresholds, gates=gates)
    if listener is not None:
        session.add_listener(listener)
    with checker.running(), session:
        session.await_engine(timeout)
        _wait(session, ended, duration)
    return report_live(session, checker)


def check_protocol(
    endpoint: str,
    *,
    ended: threading.Event,
    duration: float | None,
    timeout: float,
    keys: ViewerKeys | None = None,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    gates: Sequence[Gate] = (),
) -> Report:
    """Checks a publisher against the protocol, and its engine, as `check_live` does.

    Raises:
        EndpointError: `endpoint` is malformed.
        UnreachableError: Nothing answered, or refused this viewer.
    """
    checker = ProtocolChecker(endpoint, keys=keys, thresholds=thresholds, gates=gates)
    checker.run(ended, duration, timeout)
    report = report_of(endpoint, checker)
    report.num_unknown, report.num_snapshots = checker.num_unknown, checker.num_snapshots
    if checker.ends_in_gap:
        report.problem = "the messages at the end could not be applied"
    elif not report.num_steps:
        report.problem = f"{endpoint} has sent no step: there is nothing to check"
    elif not report.num_snapshots:
        report.problem = "no snapshot was compared: the engine stopped too early"
    report.complete = report.problem is None
    report.add_outcomes(outcomes(checker))
    return report


def report_live(session: Session, checker: LiveChecker) -> Report:
    """Returns the report of a session that has been checked."""
    endpoint = session.connection.endpoint
    report = report_of(endpoint, checker)
    report.num_unknown = session.connection.num_unknown
    if checker.ends_in_gap:
        report.problem = f"the end of the stream was not read: {session.connection.detail}"
    elif not report.num_steps:
        report.problem = f"{endpoint} has sent no step: there is nothing to check"
    report.complete = report.problem is None
    report.add_outcomes(outcomes(checker))
    return report


def _wait(session: Session, ended: threading.Event, duration: float | None) -> None:
    """Waits for `ended`, the end of `duration` or the end of the engine."""
    deadline = math.inf if duration is None else time.monotonic() + duration
    while time.monotonic() < deadline and not ended.is_set():
        if session.wait_for(ConnectionState.STOPPED, timeout=min(0.2, deadline - time.monotonic())):
            return
