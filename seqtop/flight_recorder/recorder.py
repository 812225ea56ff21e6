"""Records the last minutes of a session in memory, and writes them when something is wrong."""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from seqtop.alerts.alert import Alert
from seqtop.alerts.watch import ConditionChange, ConditionWatch
from seqtop.checks.live_checker import LiveChecker
from seqtop.checks.thresholds import Thresholds
from seqtop.flight_recorder.verdict import (
    CONDITION,
    ENDED,
    FAILED,
    MAX_ALSO,
    MAX_REQUESTS,
    MISSED_SLO,
    SILENT,
    FurtherCause,
    Trigger,
    Verdict,
    verdict,
)
from seqtop.history import RecordingError
from seqtop.history.copying import save
from seqtop.history.memory_store import MemoryStore
from seqtop.live.session import Session
from seqtop.process import files, stacks
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.state.slo import FIGURES, Slo, missed
from seqtop.state.verdict import of_last_minute
from seqtop.text import format as fmt
from seqtop.text.sanitize import indented_json
from seqtop.transport.connection import ConnectionState, UnreachableError
from seqtop.transport.subscriber import SILENCE_SECONDS
from seqtop.wire.messages import EngineStopped

MAX_BYTES = 8 * 2**20
"""Compressed bytes of the events in memory, and so, about, of a record."""
MAX_EVENTS = 200_000
"""Events in memory."""
MAX_FINISHED = 200
"""Finished requests in the state."""
MAX_RECORDS = 10
"""Records in a directory. The oldest are removed for new ones."""
INCIDENT_SECONDS = 60.0
"""Seconds from the first cause of an incident in which others belong to it too."""
MIN_SECONDS_BETWEEN_RECORDS = 60.0
"""Seconds after the first record of a cause in which it makes no other one. They double with each
record, so that a missed objective of the first requests hides none for long."""
MAX_SECONDS_BETWEEN_RECORDS = 600.0
NO_PROGRESS_SECONDS = 10.0
"""The threshold `no_progress_seconds`, unless another one is given. Each record is looked at, so a
stall of seconds is worth one, unlike a finding of a check."""

_POLL_SECONDS = 0.2
_RETRY_SECONDS = 10.0
"""Seconds from a failed attempt to write a record to the next one."""
_NAME = re.compile(r"flight-\d{8}-\d{6}-\d+-[a-z-]+\.(seqtop|json|part)")

Log = Callable[[str], object]
"""Receives a sentence for the user."""


class _Incident(msgspec.Struct):
    """An incident, whose record has been written or is tried again."""

    cause: Trigger
    verdict: Verdict
    path: Path
    """The path of the verdict."""
    begin: float
    """The time of its first cause, on the monotonic clock."""
    replaces: Path | None = None
    """The verdict of another cause of the incident, whose record goes when this one is written."""
    retry: float = math.inf
    """The time at which writing is tried again; infinite if everything is written."""


class FlightRecorder:
    """Watches a session and writes records of it to a directory.

    Args:
        session: The session, with a `recent_history`.
        directory: The directory of the records; it is created if necessary.
        redact: Removes texts and tokens.
        thresholds: The thresholds of the rules.
        slo: The objectives; a record is written if a request misses one.
        log: Receives a sentence for each record.
        publisher_ended: Is set when the process that publishes has ended. The recorder then ends
            too, or when the engine has announced its end. If it is `None`, the engine is expected
            to return.
        watches: Conditions. A record is written when one begins to hold.
        send: Receives an alert for each cause of a record, and when a condition begins to hold or
            ends.
        stacks_path: The path of the `StackServer` of the engine's process, if it has one.

    Raises:
        RecordingError: The directory cannot be created or written to.
    """

    def __init__(
        self,
        session: Session,
        directory: Path,
        *,
        redact: bool,
        thresholds: Thresholds,
        slo: Slo,
        log: Log,
        publisher_ended: threading.Event | None = None,
        watches: Sequence[ConditionWatch] = (),
        send: Callable[[Alert], object] = lambda _: None,
        stacks_path: str | None = None,
    ) -> None:
        self._session = session
        self._watches = watches
        self._send = send
        self._stacks_path = stacks_path
        self._directory = directory
        self._redacts = redact
        self._log = log
        self._publisher_ended = publisher_ended
        self._checker = LiveChecker(session, stored="newest", thresholds=thresholds)
        self._num_findings = 0
        self._slo = slo
        self._missed: dict[str, dict[str, float]] = {}
        """Requests that have missed objectives since the last poll, with the figures in seconds.

        `Latencies` has them too, but its windows take tens of megabytes."""
        self._stopped: EngineStopped | None = None
        self._incarnation: str | None = None
        self._replaced_at: int | None = None
        """The position at which another engine has taken the endpoint of the one to record."""
        self._incident: _Incident | None = None
        """The last incident."""
        self._next: dict[str, float] = {}
        """The time before which a cause makes no other record."""
        self._pauses: dict[str, float] = {}
        """The seconds without a record after the next one of a cause."""
        self._records: list[str] = []
        """The records in the directory without the ends of their names, the oldest first.

        A time in a name, or of a file, may be that of a clock that was ahead. So a record is as old
        as this process knows it, and those of earlier processes are in the order of their times."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RecordingError(f"{directory} cannot be created: {error.strerror}") from error
        if not os.access(directory, os.W_OK | os.X_OK):
            raise RecordingError(f"{directory} cannot be written to")
        self._find_records()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watches the session while the context lasts; enter it before the session."""
        self._session.add_listener(self._observe)
        try:
            with self._checker.running():
                yield
        finally:
            self._session.remove_listener(self._observe)

    def await_engine(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for a first state.

        Raises:
            UnreachableError: None arrived, or the process that publishes has ended before.
        """
        if self._publisher_ended is None:
            self._session.await_engine(timeout)
            return
        deadline = time.monotonic() + timeout
        while not self._session.wait_until(lambda: self._incarnation is not None, _POLL_SECONDS):
            if self._publisher_ended.is_set():
                message = "the engine ended before the flight recorder had its state"
                self._report(Trigger(ENDED, f"{message}; why is unknown", []))
                raise UnreachableError(message)
            if time.monotonic() > deadline:
                detail = self._session.connection.detail
                raise UnreachableError(f"the flight recorder is off after {timeout:g} s: {detail}")

    def run(self, ended: threading.Event, duration: float = math.inf) -> None:
        """Writes records until `ended` is set, for `duration` seconds, or until the engine ends.

        Args:
            ended: Ends the recorder.
            duration: Seconds to run.
        """
        deadline = time.monotonic() + duration
        while (left := deadline - time.monotonic()) > 0:
            if ended.wait(min(left, _POLL_SECONDS)):
                return
            publisher_ended = self._publisher_ended is not None and self._publisher_ended.is_set()
            if publisher_ended:
                self._await_last_message()
            has_stopped = self._publisher_ended is not None and self._stopped is not None
            for cause in self._causes(publisher_ended=publisher_ended):
                if self._report(cause):
                    self._alert(cause.name, cause.message, cause.request_ids)
            for watch in self._watches:
                self._report_condition(watch)
            is_last = publisher_ended or has_stopped
            incident = self._incident
            if incident is not None and (is_last or time.monotonic() >= incident.retry):
                self._retry(incident)
            if is_last:
                return

    def _await_last_message(self) -> None:
        """Waits until there is nothing more to receive from a process that has ended."""
        over = (ConnectionState.STOPPED, ConnectionState.LOST)
        self._session.wait_until(
            lambda: self._session.connection.state in over or self._replaced_at is not None,
            2 * SILENCE_SECONDS,
        )

    def _observe(self, change: StateChange) -> None:
        if self._replaced_at is not None:
            return
        if change.event is None:
            is_other = self._incarnation not in (None, change.incarnation)
            if is_other and self._publisher_ended is not None:
                self._replaced_at = self._session.history.last
                return
            self._stopped, self._incarnation = None, change.incarnation
        for watch in self._watches:
            watch.observe(change)
        if self._slo and change.touched is not None:
            self._find_missed(change.state, change.touched)
        if isinstance(change.event, EngineStopped):
            self._stopped = change.event

    def _find_missed(self, state: EngineState, touched: Iterable[int]) -> None:
        for seq_id in touched:
            if len(self._missed) == MAX_REQUESTS:
                return
            sequence = state.sequences.get(seq_id)
            if sequence is not None:
                request = state.requests[sequence.request_id]
                if figures := missed(self._slo, request, sequence, state.time):
                    self._missed.setdefault(request.request_id, figures)

    def _causes(self, *, publisher_ended: bool) -> Iterator[Trigger]:
        """Yields the reasons to write a record since the last call."""
        yield from self._findings()
        yield from self._missed_objectives()
        stopped = self._stopped
        if stopped is not None:
            if stopped.failed:
                yield self._of_unfinished(FAILED, stopped.reason or "the engine cannot continue")
        elif publisher_ended:
            yield self._of_unfinished(
                ENDED, "the process that publishes was killed or crashed: its end was not announced"
            )
        elif self._session.connection.state is ConnectionState.LOST:
            if self._publisher_ended is None:
                known = "whether its process runs is unknown"
            else:
                known = "the process that publishes has not ended"
            yield self._of_unfinished(
                SILENT, f"nothing was received for {SILENCE_SECONDS:g} s; {known}"
            )

    def _findings(self) -> Iterator[Trigger]:
        last, self._num_findings = self._num_findings, self._checker.num_findings
        if last == self._num_findings:
            return
        findings = [entry.finding for entry in self._checker.findings() if entry.number > last]
        for rule in dict.fromkeys(finding.rule for finding in findings):
            same = [finding for finding in findings if finding.rule == rule]
            named = (finding.request_id for finding in same)
            ids = dict.fromkeys(request_id for request_id in named if request_id is not None)
            yield Trigger(rule, same[0].message, [*ids][:MAX_REQUESTS])

    def _missed_objectives(self) -> Iterator[Trigger]:
        with self._session.lock:
            alerts, self._missed = self._missed, {}
        if alerts:
            request_id, figures = next(iter(alerts.items()))
            sentences = [
                f"{FIGURES[key]} {fmt.seconds(value)} (limit {fmt.seconds(self._slo.limits[key])})"
                for key, value in figures.items()
            ]
            yield Trigger(MISSED_SLO, f"{request_id} missed {', '.join(sentences)}", [*alerts])

    def _of_unfinished(self, name: str, message: str) -> Trigger:
        with self._session.lock:
            state = self._last_state()
            requests = state.requests.values()
            ids = [request.request_id for request in requests if request.finish_reason is None]
        unfinished = f"{fmt.plural(len(ids), 'request')} unfinished after step {state.step}"
        return Trigger(name, f"{message}; {unfinished}", ids[:MAX_REQUESTS])

    def _last_state(self) -> EngineState:
        """Returns the last state of the engine, even if another one has taken its endpoint."""
        if self._replaced_at is None:
            return self._session.state
        return self._session.history.at(self._replaced_at - 1)

    def _report_condition(self, watch: ConditionWatch) -> None:
        """Reports that a condition begins to hold, and that this has ended."""
        with self._session.lock:
            changes = [*watch.poll()]
        for change in changes:
            message = watch.sentence(change)
            ids = [] if change.request_id is None else [change.request_id]
            if change.has_begun:
                self._report(Trigger(CONDITION, message, ids))
            self._alert(CONDITION, message, ids, watch.condition.source, change)

    def _alert(
        self,
        cause: str,
        message: str,
        request_ids: list[str],
        condition: str | None = None,
        change: ConditionChange | None = None,
    ) -> None:
        """Sends an alert about a cause; `change` is that of a condition."""
        incident = self._incident
        is_recent = incident is not None and time.monotonic() - incident.begin < INCIDENT_SECONDS
        name = incident.verdict.recording if incident is not None and is_recent else None
        with self._session.lock:
            state = self._last_state()
            info = state.info
            alert = Alert(
                cause=cause,
                state="began" if change is None or change.has_begun else "ended",
                message=message,
                condition=condition,
                engine_id=info.engine_id if info else "",
                endpoint=self._session.connection.endpoint,
                incarnation=info.incarnation if info else "",
                time=state.time if change is None else change.time,
                step=state.step if change is None else change.step,
                request_ids=request_ids,
                held_seconds=None if change is None else change.held_seconds,
                verdict=of_last_minute(state).sentence,
                recording=str(self._directory.absolute() / name) if name else None,
                num_left_out=0 if change is None else change.num_left_out,
            )
        self._send(alert)

    def _report(self, cause: Trigger) -> bool:
        """Writes a record, or adds the cause to the one of the present incident.

        Returns whether it does: a cause that was reported a moment ago is left out.
        """
        now, incident = time.monotonic(), self._incident
        if now < self._next.get(cause.name, now):
            return False
        seconds = self._pauses.get(cause.name, MIN_SECONDS_BETWEEN_RECORDS)
        self._next[cause.name] = now + seconds
        self._pauses[cause.name] = min(2 * seconds, MAX_SECONDS_BETWEEN_RECORDS)
        is_written = incident is not None and incident.retry == math.inf
        if incident is None or (is_written and now - incident.begin >= INCIDENT_SECONDS):
            self._record(cause, now)
        elif cause.rank > incident.cause.rank:
            self._record(cause, incident.begin, incident)
        else:
            self._add(cause, incident)
        return True

    def _add(self, cause: Trigger, incident: _Incident) -> None:
        """Adds a further cause to the verdict of an incident."""
        with self._session.lock:
            step = self._last_state().step
        if len(incident.verdict.also) < MAX_ALSO:
            incident.verdict.also.append(FurtherCause(*cause, step))
        with contextlib.suppress(OSError):  # what was written before is still there
            _write(incident.verdict, incident.path)
        self._log(f"{cause.name}: {cause.message}; added to {incident.path}")

    def _record(self, cause: Trigger, begin: float, before: _Incident | None = None) -> None:
        """Writes the record of an incident, which replaces the one of a cause before it, if any."""
        with self._session.lock:
            result = verdict(
                cause,
                self._last_state(),
                endpoint=self._session.connection.endpoint,
                findings=self._checker.counts(),
                redacted=self._redacts,
            )
        self._add_stacks(result)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        path = self._directory / f"flight-{stamp}-{os.getpid()}-{cause.name}.json"
        incident = self._incident = _Incident(cause, result, path, begin)
        if before is not None:
            first = FurtherCause(*before.cause, before.verdict.step)
            result.also = [first, *before.verdict.also]
            incident.replaces = before.path
        self._remove_oldest()
        self._records.append(path.stem)
        problem = self._write_files(incident)
        text = f"{cause.name}: {cause.message}; "
        if problem is None:
            self._log(f"{text}recorded in {path.with_name(result.recording or path.name)}")
        else:
            missing = "recording" if path.exists() else "record"
            self._log(f"{text}no {missing}, as {problem}; it is tried again")

    def _add_stacks(self, result: Verdict) -> None:
        """Adds the stacks of the engine's threads to a verdict, or why there are none."""
        if self._stacks_path is None:
            result.stacks_problem = "the engine did not start this recorder"
            return
        try:
            result.stacks = stacks.read(self._stacks_path).splitlines()
        except OSError as error:
            result.stacks_problem = f"the process did not tell them: {error}"

    def _retry(self, incident: _Incident) -> None:
        """Writes again what could not be written of a record."""
        if incident.retry < math.inf and self._write_files(incident) is None:
            self._log(f"{incident.cause.name}: recorded in {incident.path} after all")

    def _write_files(self, incident: _Incident) -> str | None:
        """Writes the files of a record, the small verdict first; returns a problem, if any."""
        result, path = incident.verdict, incident.path
        problem = None
        try:
            result.recording, result.problem = None, "the recording was not complete"
            _write(result, path)
            result.recording, result.problem = self._save_recording(path), None
            _write(result, path)
        except (OSError, RecordingError) as error:
            result.problem = problem = str(error)
            with contextlib.suppress(OSError):
                _write(result, path)
        incident.retry = math.inf if problem is None else time.monotonic() + _RETRY_SECONDS
        if problem is None and (before := incident.replaces) is not None:
            _remove(before, before.with_suffix(".seqtop"))
        return problem

    def _save_recording(self, path: Path) -> str | None:
        """Writes the recording beside a verdict; returns its name, `None` if nothing is known."""
        if self._incarnation is None:
            return None
        recording, part = path.with_suffix(".seqtop"), path.with_suffix(".part")
        try:
            _remove(part)
            save(self._session.history, part)
            part.replace(recording)
        except BaseException:  # nothing that is not complete stays
            _remove(part)
            raise
        return recording.name

    def _remove_oldest(self) -> None:
        """Makes room for a record in the directory."""
        files = self._find_records()
        oldest = self._records[: max(len(self._records) - MAX_RECORDS + 1, 0)]
        _remove(*(file for file in files if file.stem in oldest))

    def _find_records(self) -> list[Path]:
        """Returns the files of records in the directory that belong to this user."""
        times: dict[str, float] = {}
        files = []
        with contextlib.suppress(OSError):  # if it cannot be read, writing says why
            for entry in os.scandir(self._directory):
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and _NAME.fullmatch(entry.name):
                    file = Path(entry.path)
                    files.append(file)
                    times[file.stem] = max(status.st_mtime, times.get(file.stem, 0.0))
        self._records = [record for record in self._records if record in times]
        new = times.keys() - {*self._records}
        self._records += sorted(new, key=lambda record: (times[record], record))
        return files


def _remove(*paths: Path) -> None:
    """Removes files as far as they exist and can be removed."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def recent_history() -> MemoryStore:
    """Returns the history of a session that a flight recorder watches."""
    return MemoryStore(max_bytes=MAX_BYTES, max_events=MAX_EVENTS)


def _write(result: Verdict, path: Path) -> None:
    # Replacing makes the file visible when it is complete, without an empty one before.
    with files.writing(path, overwrite=True) as file:
        file.write(indented_json(result).encode() + b"\n")
