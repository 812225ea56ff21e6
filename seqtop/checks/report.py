"""What `seqtop check` does: hold a live engine, or a recording of one, to the rules.

The report is for an engine's own CI as much as for people: sentences, JSON or JUnit XML.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from xml.etree import ElementTree as ET

import msgspec

from seqtop.checks import RULES, Checker, Finding
from seqtop.connection import ConnectionState
from seqtop.history import FileStore, RecordingError
from seqtop.history.memory_store import MemoryStore
from seqtop.sanitize import safe_json, safe_line
from seqtop.session import Session
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.transport.curve_keys import ViewerKeys
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Event

MAX_FINDINGS = 1_000
"""Findings of one rule that are kept in full; more are only counted."""


class Report(msgspec.Struct):
    """What was looked at and what was wrong with it."""

    source: str
    num_events: int = 0
    num_steps: int = 0
    num_gaps: int = 0
    """Holes in what was seen; checking began anew after each."""
    counts: dict[str, int] = msgspec.field(default_factory=Counter)
    """Findings by rule."""
    findings: list[Finding] = []
    complete: bool = True
    """Whether all of it was checked: not so where a recording is damaged or has no step in it."""
    remark: str | None = None
    """One sentence on what is wrong with the recording itself, if anything."""

    def as_json(self) -> str:
        """The report as indented JSON."""
        return safe_json(msgspec.json.format(msgspec.json.encode(self), indent=2).decode())

    def as_junit(self) -> str:
        """The report as JUnit XML: a test case a rule, and one for whether all was checked."""
        suite = ET.Element(
            "testsuite",
            name="seqtop check",
            tests=str(len(RULES) + 1),
            failures=str(len(self.counts)),
            errors=str(int(not self.complete)),
        )
        whole = ET.SubElement(suite, "testcase", classname=safe_line(self.source), name="complete")
        if not self.complete:
            ET.SubElement(whole, "error", message=safe_line(self.remark or ""))
        for rule, meaning in RULES.items():
            case = ET.SubElement(suite, "testcase", classname=safe_line(self.source), name=rule)
            if self.counts.get(rule):
                failure = ET.SubElement(case, "failure", message=meaning)
                failure.text = "\n".join(
                    sentence(finding) for finding in self.findings if finding.rule == rule
                )
        return ET.tostring(suite, encoding="unicode", xml_declaration=True)

    def as_text(self) -> str:
        """The report in sentences, one a finding, and a line that sums up."""
        lines = [sentence(finding) for finding in self.findings]
        looked_at = f"{self.num_steps:,} steps, {self.num_events:,} events, {self.num_gaps:,} gaps"
        total = sum(self.counts.values())
        partly = "" if self.complete else "; not all could be checked"
        lines.append(f"{safe_line(self.source)}: {looked_at}, {total:,} findings{partly}")
        return "\n".join(lines)


def sentence(finding: Finding) -> str:
    """A finding as one line of text, safe for a terminal."""
    where = [f"step {finding.step}"]
    if finding.request_id is not None:
        where.append(f"request {finding.request_id}")
    if finding.seq_id is not None:
        where.append(f"sequence {finding.seq_id}")
    return safe_line(f"{', '.join(where)}: {finding.rule}: {finding.message}")


class _ReportBuilder:
    """A `Checker` that can start over after a gap, and the report it fills."""

    def __init__(self, source: str) -> None:
        self.report = Report(source)
        self._checker = Checker()
        self._has_begun = False

    def begin(self, state: EngineState) -> None:
        """Go on from `state`, of which a copy is made."""
        self.report.num_gaps += self._has_begun
        self._has_begun = True
        self._checker = Checker(codec.decode(codec.encode(state), EngineState))

    def apply(self, event: Event) -> None:
        """Check the next event, which must be this watch's own: states keep parts of events."""
        num_steps = self._checker.state.num_steps_seen
        self._take(self._checker.apply(event))
        self.report.num_events += 1
        self.report.num_steps += self._checker.state.num_steps_seen - num_steps

    def end(self) -> Report:
        self._take(list(self._checker.check_pool()))
        return self.report

    def _take(self, findings: list[Finding]) -> None:
        for finding in findings:
            count = self.report.counts.get(finding.rule, 0)
            self.report.counts[finding.rule] = count + 1
            if count < MAX_FINDINGS:
                self.report.findings.append(finding)


class _LiveWatch(_ReportBuilder):
    """A report builder that listens to a session."""

    def observe(self, change: StateChange) -> None:
        if change.event is None:
            self.begin(change.state)
        else:
            self.apply(parsing.event(change.payload))


def check_recording(path: str | os.PathLike[str]) -> Report:
    """Check a whole recording, as far as it can be read.

    Raises:
        RecordingError: there is no such recording.
    """
    with FileStore(path) as recording:
        watch = _ReportBuilder(os.fspath(path))
        unreadable = _go_through(recording, watch)
        report = watch.end()
        report.complete = not (unreadable or recording.num_lost_bytes) and report.num_steps > 0
        report.remark = recording.damage
        if unreadable and report.remark is None:
            more = f", and so are {len(unreadable) - 1:,} more places" if unreadable[1:] else ""
            report.remark = f"{unreadable[0]}{more}"
        elif not report.num_steps and not recording.is_empty and not recording.num_lost_bytes:
            report.remark = f"{recording.path} has no step in it: there is nothing to check"
        return report


def _go_through(recording: FileStore, watch: _ReportBuilder) -> list[str]:
    """Check from the first moment to the last; returns a sentence for each unreadable place."""
    unreadable: list[str] = []
    position: int | None = recording.first
    while position is not None:
        try:
            watch.begin(recording.at(position))
            for reached, event in recording.events(position, recording.last):
                position = reached
                if event is None:
                    watch.begin(recording.at(reached))
                else:
                    watch.apply(event)
            break
        except RecordingError as error:
            unreadable.append(str(error))
            position = recording.keyframe_after(position)
    return list(dict.fromkeys([*unreadable, *recording.unreadable()]))


def check_live(
    endpoint: str,
    *,
    ended: threading.Event,
    duration: float | None,
    timeout: float,
    keys: ViewerKeys | None = None,
) -> Report:
    """Check a running engine until `ended` is set, for `duration` seconds, or until it stops.

    Args:
        timeout: Seconds to wait for the engine at first.
        keys: For an engine that lets in holders of keys alone.

    Raises:
        EndpointError: `endpoint` is malformed.
        UnreachableError: no engine answered, or none that can be understood.
    """
    session = Session(endpoint, history=MemoryStore(max_bytes=0), keys=keys)
    watch = _LiveWatch(endpoint)
    session.add_listener(watch.observe)  # before the start, so that every message is checked
    with session:
        session.await_engine(timeout)
        _wait(session, ended, duration)
        session.remove_listener(watch.observe)
    return watch.end()


def _wait(session: Session, ended: threading.Event, duration: float | None) -> None:
    """Until any of the three ways to end has come."""
    deadline = math.inf if duration is None else time.monotonic() + duration
    while time.monotonic() < deadline and not ended.is_set():
        if session.wait_for(ConnectionState.STOPPED, timeout=min(0.2, deadline - time.monotonic())):
            return
