"""Records the last minutes of a session in memory, and writes them when something is wrong."""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from seqtop.checks.live_checker import LiveChecker
from seqtop.checks.thresholds import Thresholds
from seqtop.flight_recorder.verdict import (
    ENDED,
    FAILED,
    MAX_REQUESTS,
    MISSED_SLO,
    SILENT,
    Cause,
    Verdict,
    verdict,
)
from seqtop.history import RecordingError
from seqtop.history.copying import save
from seqtop.history.memory_store import MemoryStore
from seqtop.live.connection import ConnectionState, UnreachableError
from seqtop.live.session import Session
from seqtop.process import files
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.state.slo import FIGURES, Slo, missed
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_json
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
SECONDS_BETWEEN_RECORDS = 600.0
"""Seconds after a record in which the same cause makes no other one."""

_POLL_SECONDS = 0.2
_NAME = re.compile(r"flight-\d{8}-\d{6}-\d+-[a-z-]+\.(seqtop|json)")

Log = Callable[[str], object]
"""Receives a sentence for the user."""


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
    ) -> None:
        self._session = session
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
        self._written: dict[str, float] = {}
        """The time of the last record of each cause."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RecordingError(f"{directory} cannot be created: {error.strerror}") from error
        if not os.access(directory, os.W_OK | os.X_OK):
            raise RecordingError(f"{directory} cannot be written to")

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
                raise UnreachableError("the engine ended before the flight recorder had its state")
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
                self._record(cause)
            if publisher_ended or has_stopped:
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

    def _causes(self, *, publisher_ended: bool) -> Iterator[Cause]:
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

    def _findings(self) -> Iterator[Cause]:
        last, self._num_findings = self._num_findings, self._checker.num_findings
        if last == self._num_findings:
            return
        findings = [entry.finding for entry in self._checker.findings() if entry.number > last]
        for rule in dict.fromkeys(finding.rule for finding in findings):
            same = [finding for finding in findings if finding.rule == rule]
            named = (finding.request_id for finding in same)
            ids = dict.fromkeys(request_id for request_id in named if request_id is not None)
            yield Cause(rule, same[0].message, [*ids][:MAX_REQUESTS])

    def _missed_objectives(self) -> Iterator[Cause]:
        with self._session.lock:
            alerts, self._missed = self._missed, {}
        if alerts:
            request_id, figures = next(iter(alerts.items()))
            sentences = [
                f"{FIGURES[key]} {fmt.seconds(value)} (limit {fmt.seconds(self._slo.limits[key])})"
                for key, value in figures.items()
            ]
            yield Cause(MISSED_SLO, f"{request_id} missed {', '.join(sentences)}", [*alerts])

    def _of_unfinished(self, name: str, message: str) -> Cause:
        with self._session.lock:
            state = self._last_state()
            requests = state.requests.values()
            ids = [request.request_id for request in requests if request.finish_reason is None]
        unfinished = f"{fmt.plural(len(ids), 'request')} unfinished after step {state.step}"
        return Cause(name, f"{message}; {unfinished}", ids[:MAX_REQUESTS])

    def _last_state(self) -> EngineState:
        """Returns the last state of the engine, even if another one has taken its endpoint."""
        if self._replaced_at is None:
            return self._session.state
        return self._session.history.at(self._replaced_at - 1)

    def _record(self, cause: Cause) -> None:
        """Writes a record, unless there is one of this cause already."""
        now = time.monotonic()
        if now - self._written.get(cause.name, -SECONDS_BETWEEN_RECORDS) < SECONDS_BETWEEN_RECORDS:
            return
        self._written[cause.name] = now
        with contextlib.suppress(OSError):  # if it cannot be read, writing says why
            self._remove_oldest()
        with self._session.lock:
            result = verdict(
                cause,
                self._last_state(),
                endpoint=self._session.connection.endpoint,
                findings=self._checker.counts(),
                redacted=self._redacts,
            )
        stamp = time.strftime("%Y%m%d-%H%M%S")
        path = self._directory / f"flight-{stamp}-{os.getpid()}-{cause.name}.seqtop"
        try:
            save(self._session.history, path)
            result.recording = path.name
        except RecordingError as error:
            result.problem = str(error)
        try:
            _write(result, path.with_suffix(".json"))
        except OSError as error:
            self._log(f"{cause.name}: {cause.message}; no record, as {error}")
        else:
            self._log(f"{cause.name}: {cause.message}; recorded in {path}")

    def _remove_oldest(self) -> None:
        """Makes room for a record in the directory."""
        files = [file for file in self._directory.iterdir() if _NAME.fullmatch(file.name)]
        records = sorted({file.stem for file in files})
        oldest = records[: max(len(records) - MAX_RECORDS + 1, 0)]
        for file in files:
            if file.stem in oldest:
                with contextlib.suppress(OSError):
                    file.unlink()


def recent_history() -> MemoryStore:
    """Returns the history of a session that a flight recorder watches."""
    return MemoryStore(max_bytes=MAX_BYTES, max_events=MAX_EVENTS)


def _write(result: Verdict, path: Path) -> None:
    content = msgspec.json.format(msgspec.json.encode(result), indent=2).decode()
    # Replacing makes the file visible when it is complete, without an empty one before.
    with files.writing(path, overwrite=True) as file:
        file.write(safe_json(content).encode() + b"\n")
