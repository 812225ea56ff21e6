"""Checks of a live engine or of a recording, for `seqtop check`.

The report is in sentences, JSON or JUnit XML, for people and for an engine's own CI.
"""

from __future__ import annotations

import math
import os
import threading
import time
from xml.etree import ElementTree as ET

import msgspec

from seqtop.checks import RULES, Finding
from seqtop.checks.background import BackgroundChecker
from seqtop.checks.stream_checker import StreamChecker
from seqtop.connection import ConnectionState
from seqtop.history import FileStore
from seqtop.history.memory_store import MemoryStore
from seqtop.sanitize import safe_json, safe_line
from seqtop.session import Session
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.transport.curve_keys import ViewerKeys
from seqtop.wire import codec, parsing


class Report(msgspec.Struct):
    """The result of checking an engine or a recording."""

    source: str
    num_events: int = 0
    num_steps: int = 0
    num_gaps: int = 0
    """Gaps in the stream; checking started again after each."""
    counts: dict[str, int] = {}
    """Findings by rule."""
    findings: list[Finding] = []
    """The first findings of each rule."""
    complete: bool = True
    """False if a recording is damaged or has no step in it."""
    problem: str | None = None
    """A sentence on the damage of the recording, or on the missing steps; `None` without such."""

    def as_json(self) -> str:
        """Returns the report as indented JSON."""
        return safe_json(msgspec.json.format(msgspec.json.encode(self), indent=2).decode())

    def as_junit(self) -> str:
        """Returns the report as JUnit XML: a test case per rule, and one named `complete`."""
        suite = ET.Element(
            "testsuite",
            name="seqtop check",
            tests=str(len(RULES) + 1),
            failures=str(len(self.counts)),
            errors=str(int(not self.complete)),
        )
        whole = ET.SubElement(suite, "testcase", classname=safe_line(self.source), name="complete")
        if not self.complete:
            ET.SubElement(whole, "error", message=safe_line(self.problem or ""))
        for rule, violation in RULES.items():
            case = ET.SubElement(suite, "testcase", classname=safe_line(self.source), name=rule)
            if self.counts.get(rule):
                failure = ET.SubElement(case, "failure", message=violation)
                failure.text = "\n".join(
                    sentence(finding) for finding in self.findings if finding.rule == rule
                )
        document: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
        return document.decode()

    def as_text(self) -> str:
        """Returns the report in sentences: one line per finding, and a summary."""
        lines = [sentence(finding) for finding in self.findings]
        amount = f"{self.num_steps:,} steps, {self.num_events:,} events, {self.num_gaps:,} gaps"
        total = sum(self.counts.values())
        partly = "" if self.complete else "; not all could be checked"
        lines.append(f"{safe_line(self.source)}: {amount}, {total:,} findings{partly}")
        return "\n".join(lines)


def sentence(finding: Finding) -> str:
    """Formats a finding as one line of text, safe for a terminal."""
    where = [f"step {finding.step}"]
    if finding.request_id is not None:
        where.append(f"request {finding.request_id}")
    if finding.seq_id is not None:
        where.append(f"sequence {finding.seq_id}")
    return safe_line(f"{', '.join(where)}: {finding.rule}: {finding.message}")


class _LiveChecker(StreamChecker):
    """Checks the live stream of a session."""

    def observe(self, change: StateChange) -> None:
        """Checks an event, or starts again from a snapshot; a `Listener`.

        Two states must not share parts of an event or a snapshot, so both are decoded again.
        """
        if change.event is None:
            state = codec.decode(codec.encode(change.state), EngineState)
            self.start(change.sequence_number, state)
        else:
            self.apply(change.sequence_number, parsing.event(change.payload))


def check_recording(path: str | os.PathLike[str]) -> Report:
    """Checks a recording, as far as it can be read.

    Raises:
        RecordingError: The file does not exist or is not a recording of this version.
    """
    with FileStore(path) as recording:
        checker = BackgroundChecker(recording, stored="first")
        checker.advance(math.inf)
        report = _report(os.fspath(path), checker)
        unreadable = list(dict.fromkeys([*checker.errors, *recording.unreadable()]))
        report.complete = not (unreadable or recording.num_lost_bytes) and report.num_steps > 0
        report.problem = recording.damage
        if unreadable and report.problem is None:
            more = f", and so are {len(unreadable) - 1:,} more places" if unreadable[1:] else ""
            report.problem = f"{unreadable[0]}{more}"
        elif not report.num_steps and not recording.is_empty and not recording.num_lost_bytes:
            report.problem = f"{recording.path} has no step in it: there is nothing to check"
        return report


def check_live(
    endpoint: str,
    *,
    ended: threading.Event,
    duration: float | None,
    timeout: float,
    keys: ViewerKeys | None = None,
) -> Report:
    """Checks a running engine until `ended` is set, for `duration` seconds, or until it stops.

    Args:
        endpoint: The endpoint of the engine's live stream.
        ended: Ends the check when it is set.
        duration: Seconds to check; `None` for no limit.
        timeout: Seconds to wait for the first state.
        keys: The viewer's CurveZMQ keys, if the engine requires any.

    Raises:
        EndpointError: `endpoint` is malformed.
        UnreachableError: No engine answered, or its messages cannot be read.
    """
    session = Session(endpoint, history=MemoryStore(max_bytes=0), keys=keys)
    checker = _LiveChecker(stored="first")
    session.add_listener(checker.observe)  # before it starts, so that no message is missed
    with session:
        session.await_engine(timeout)
        _wait(session, ended, duration)
        session.remove_listener(checker.observe)
    return _report(endpoint, checker)


def _wait(session: Session, ended: threading.Event, duration: float | None) -> None:
    """Waits for `ended`, the end of `duration` or the end of the engine."""
    deadline = math.inf if duration is None else time.monotonic() + duration
    while time.monotonic() < deadline and not ended.is_set():
        if session.wait_for(ConnectionState.STOPPED, timeout=min(0.2, deadline - time.monotonic())):
            return


def _report(source: str, checker: StreamChecker) -> Report:
    checker.end()
    return Report(
        source,
        num_events=checker.num_events,
        num_steps=checker.num_steps,
        num_gaps=checker.num_gaps,
        counts=checker.counts(),
        findings=[located.finding for located in checker.found()],
    )
