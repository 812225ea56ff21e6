"""A fixture for an engine's own tests, which records the engine and fails the test on findings.

pytest loads this module in every project that has seqtop installed, so it imports nothing else of
seqtop until a test uses the fixture.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from seqtop.checks.live_checker import LiveChecker
    from seqtop.gates.baseline import Baseline
    from seqtop.history.recorder import Recorder
    from seqtop.live.session import Session

_FIXTURE = "seqtop_checks"


class CheckedEngine:
    """One engine that a test has given to `seqtop_checks`."""

    def __init__(
        self,
        session: Session,
        checker: LiveChecker,
        recorder: Recorder,
        path: Path,
        baseline: Baseline | None,
    ) -> None:
        self.session = session
        """The viewer's session with the engine; `session.state` is the engine's state."""
        self.path = path
        """The recording."""
        self._checker = checker
        self._recorder = recorder
        self._baseline = baseline

    def finish(self, *, fail_on: str, timeout: float) -> str | None:
        """Checks what the engine has published; returns the problems, or `None`."""
        from seqtop.checks.live_report import report_live

        self._receive_all(timeout)
        self.session.close()  # an engine may go on, and its events are checked on another thread
        report = report_live(self.session, self._checker)
        self._recorder.close()
        if self._recorder.error is not None:
            report.complete, report.problem = False, self._recorder.error
        elif self._baseline is not None:
            self._baseline.compare(report, self.path)
        failed = report.num_errors or (report.num_warnings and fail_on == "warning")
        if not failed and report.complete:
            return None
        problem = "" if report.complete else f"{report.problem}\n"
        return f"{problem}{report.as_text()}\nrecorded in {self.path}"

    def _receive_all(self, timeout: float) -> None:
        """Waits until the session has all that the engine has published, or the engine ends."""
        from seqtop.live.session import Session
        from seqtop.process.observable import Observable
        from seqtop.transport.connection import ConnectionState

        session, change = self.session, Observable()
        # A session has its first state shortly before it is live.
        goes_on = ConnectionState.CONNECTING, ConnectionState.SYNCING, ConnectionState.LIVE
        # A snapshot contains everything that was published before it was requested.
        with contextlib.ExitStack() as stack:
            later = stack.enter_context(Session(session.connection.endpoint))
            for observed in (session, later):
                observed.add_callback(change.changed)
                stack.callback(observed.remove_callback, change.changed)

            def has_ended() -> bool:
                """Returns whether the engine has said that it ends: it then sends no snapshot."""
                return session.connection.state not in goes_on

            change.wait_until(
                lambda: has_ended() or later.connection.state is ConnectionState.LIVE, timeout
            )
            number = later.sequence_number
            change.wait_until(lambda: has_ended() or session.sequence_number >= number, timeout)


class SeqtopChecks:
    """Checks engines while a test runs; the fixture `seqtop_checks`.

    A test calls it with the endpoint of each of its engines. At its end, the test fails if the
    rules of `seqtop check` find anything.

    Args:
        directory: The directory of the recordings.
        name: The name of the test, for their names.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.fail_on = "warning"
        """The least severity of a finding that fails the test: `warning` or `error`."""
        self.timeout = 30.0
        """Seconds to wait for an engine."""
        self._directory = directory
        self._name = re.sub(r"[^\w-]", "_", name)[:80]
        self._engines: list[CheckedEngine] = []
        self._open = contextlib.ExitStack()

    @property
    def paths(self) -> list[Path]:
        """The recordings."""
        return [engine.path for engine in self._engines]

    def __call__(
        self,
        endpoint: str,
        *,
        thresholds: Mapping[str, float] | None = None,
        redact: bool = False,
        fail_if: str | Sequence[str] = (),
        slo: str | Sequence[str] = (),
        baseline: str | os.PathLike[str] | None = None,
        tolerance: float = 0.1,
    ) -> CheckedEngine:
        """Starts to check and record an engine, and waits for its first state.

        Args:
            endpoint: Where the engine publishes, such as `ipc:///tmp/engine`; in the test's own
                process or in another one.
            thresholds: Thresholds of the warnings, by name.
            redact: Leaves prompts, outputs and token ids out of the recording.
            fail_if: Conditions that must not hold at any moment, such as `preemptions>0`.
            slo: Objectives, such as `ttft=500ms,p=99`.
            baseline: A recording that the run must not be worse than.
            tolerance: How much worse a figure may be, as a share.

        Raises:
            UnreachableError: No engine answered.
            ThresholdError: A threshold is unknown, or its value is not a positive number.
            FilterError: A condition is invalid.
            SloError: An objective is invalid.
            RecordingError: The baseline cannot be read.
        """
        from seqtop.checks.live_checker import LiveChecker
        from seqtop.checks.thresholds import from_values
        from seqtop.gates.baseline import Baseline
        from seqtop.gates.condition_gate import ConditionGate
        from seqtop.gates.objective_gate import ObjectiveGate
        from seqtop.history import FileStore, FileWriter
        from seqtop.history.memory_store import MemoryStore
        from seqtop.history.recorder import Recorder
        from seqtop.live.session import Session
        from seqtop.state.slo import parse_objective

        before = None
        if baseline is not None:
            with FileStore(baseline) as recording:
                recording.require()
                before = Baseline(baseline, recording, tolerance)
        session = Session(endpoint, history=MemoryStore(max_bytes=0), redact=redact)
        checker = LiveChecker(
            session,
            thresholds=from_values(thresholds or {}),
            gates=[
                *map(ConditionGate, _listed(fail_if)),
                *(ObjectiveGate(parse_objective(text)) for text in _listed(slo)),
            ],
        )
        path = self._directory / f"{self._name}-{len(self._engines)}.seqtop"
        recorder = Recorder(FileWriter(path, overwrite=True))
        self._open.callback(recorder.close)
        session.add_listener(recorder.record)
        self._open.enter_context(checker.running())
        self._open.enter_context(session)
        session.await_engine(self.timeout)
        engine = CheckedEngine(session, checker, recorder, path, before)
        self._engines.append(engine)
        return engine

    def finish(self) -> str | None:
        """Checks all engines; returns the problems, or `None`."""
        with self._open:
            reports = [
                engine.finish(fail_on=self.fail_on, timeout=self.timeout)
                for engine in self._engines
            ]
        return "\n".join(filter(None, reports)) or None

    def close(self) -> None:
        """Ends the sessions and the recordings."""
        self._open.close()


def _listed(texts: str | Sequence[str]) -> Sequence[str]:
    return [texts] if isinstance(texts, str) else texts


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--seqtop-recordings`."""
    parser.getgroup("seqtop").addoption(
        "--seqtop-recordings",
        type=Path,
        metavar="DIR",
        help="the directory of the recordings of seqtop_checks (default: a temporary one)",
    )


@pytest.fixture
def seqtop_checks(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SeqtopChecks]:
    """Checks the rules of seqtop on engines: call it with an engine's endpoint."""
    directory: Path | None = request.config.getoption("--seqtop-recordings")
    if directory is None:
        directory = tmp_path_factory.mktemp("seqtop")
    directory.mkdir(parents=True, exist_ok=True)
    checks = SeqtopChecks(directory, request.node.name)
    yield checks
    checks.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a test whose engines have findings."""
    outcome: Any = yield
    checks = getattr(item, "funcargs", {}).get(_FIXTURE)
    if not isinstance(checks, SeqtopChecks):
        return
    problems = checks.finish()
    for path in checks.paths:
        item.user_properties.append(("seqtop_recording", str(path)))
    if problems is None:
        return
    item.add_report_section("call", "seqtop", problems)
    if outcome.excinfo is None:
        outcome.force_exception(pytest.fail.Exception(f"seqtop: {problems}", pytrace=False))
