"""Recordings as tests of the scheduler that is installed: it has to decide as it did in them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from seqtop.diff.run import RunDecisions
from seqtop.history.file_store import FileStore
from seqtop.history.timeline import RecordingError
from seqtop.whatif.decision_kinds import KINDS, DecisionCounter, kinds_of
from seqtop.whatif.driver import (
    DriverError,
    DriverFailedError,
    Drivers,
    ReplayRequest,
    ShowProgress,
    driver_of,
    no_progress,
)
from seqtop.whatif.predict import scratch_folder
from seqtop.whatif.proof import Proof, prove
from seqtop.whatif.replay import ReplayOptions, ReplayResult
from seqtop.whatif.settings import SettingError, recorded_policy
from seqtop.whatif.workload import WorkloadError
from seqtop.wire.messages import EngineInfo

SUFFIX = ".seqtop"
"""The end of the names of recordings in a folder."""

Outcome: TypeAlias = Literal["equal", "different", "failed", "not replayed", "unreadable"]
"""The outcome of a recording: all decisions are equal or not, the scheduler has failed, it cannot
be replayed, or the file cannot be read."""


class RecordedTest(msgspec.Struct, kw_only=True):
    """The result of driving one recording through a scheduler."""

    path: str
    outcome: Outcome = "equal"
    num_requests: int = 0
    proof: Proof | None = None
    """The comparison; `None` if there is nothing to compare."""
    refused: dict[str, str] = {}
    """Requests that the scheduler refused, with the reasons."""
    problem: str = ""
    """The reason why the scheduler has failed, or the recording was not replayed or read."""


class Coverage(msgspec.Struct, kw_only=True):
    """A kind of decisions, and how often the recordings have it."""

    name: str
    title: str
    meaning: str
    count: int = 0
    num_recordings: int = 0


class RecordedTests(msgspec.Struct, kw_only=True):
    """The results of all recordings."""

    recordings: list[RecordedTest]
    decisions: list[Coverage]
    """The kinds of decisions that the schedulers have, as the recordings that were replayed have
    them."""

    def with_outcome(self, *outcomes: Outcome) -> list[RecordedTest]:
        """Returns the recordings with one of some outcomes."""
        return [own for own in self.recordings if own.outcome in outcomes]


class SchedulerOptions(msgspec.Struct, kw_only=True):
    """The scheduler that is tested."""

    python: str = sys.executable
    """The Python that runs it."""
    policy: str | None = None
    """The file of a scheduling policy of the bundled engine, for recordings with this policy."""
    model: str | None = None
    """The directory of the model, if it is not where the recordings say."""
    timeout: float | None = None
    """The seconds that a recording may take; `None` for no limit."""


def find_recordings(paths: Sequence[str]) -> list[str]:
    """Returns the recordings that some paths name, each once: files, and all in folders.

    Raises:
        RecordingError: There is no such file or folder, or a folder has no recording.
    """
    found: list[str] = []
    for path in paths:
        if not Path(path).is_dir():
            if not os.path.lexists(path):
                raise RecordingError(f"there is no file or folder {path}")
            found.append(path)
            continue
        inside = sorted(str(own) for own in Path(path).rglob(f"*{SUFFIX}") if own.is_file())
        if not inside:
            raise RecordingError(f"{path} has no recording, which is a file *{SUFFIX}")
        found += inside
    return list(dict.fromkeys(found))


def run_tests(
    paths: Sequence[str], options: SchedulerOptions, progress: ShowProgress = no_progress
) -> RecordedTests:
    """Drives recordings through the schedulers of their engines.

    Args:
        paths: The recordings.
        options: The schedulers.
        progress: Shows the progress.

    Raises:
        SettingError: None of them ran with the policy.
    """
    tests = [RecordedTest(path=path) for path in paths]
    coverage = _Coverage()
    with scratch_folder() as folder, _Replays(options, progress) as replays:
        started: list[tuple[Path, Future[ReplayResult] | None]] = []
        for number, test in enumerate(tests):
            output = folder / f"{number}{SUFFIX}"
            started.append((output, replays.start(test, output)))
        if options.policy is not None and not replays.has_used_policy:
            name = Path(options.policy).stem
            raise SettingError(f"no recording ran with the policy {name}")
        for test, (output, replay) in zip(tests, started, strict=True):
            if replay is not None:
                _finish(test, replay, output, coverage)
    return RecordedTests(recordings=tests, decisions=coverage.decisions())


class _Replays:
    """Replays of recordings, by the driver of each engine; a context manager ends them."""

    def __init__(self, options: SchedulerOptions, progress: ShowProgress) -> None:
        self.has_used_policy = False
        """True if a recording ran with the given policy."""
        self._options = options
        self._progress = progress
        self._drivers: dict[str, Drivers] = {}
        self._complete: dict[str, tuple[float, int]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> _Replays:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, test: RecordedTest, output: Path) -> Future[ReplayResult] | None:
        """Starts the replay of a recording; returns `None` if there is none, which it notes."""
        try:
            return self._submit(test.path, _engine_of(test.path), output)
        except RecordingError as error:
            test.outcome, test.problem = "unreadable", str(error)
        except (WorkloadError, DriverError) as error:
            test.outcome, test.problem = "not replayed", str(error)
        return None

    def _submit(self, path: str, info: EngineInfo, output: Path) -> Future[ReplayResult]:
        module = driver_of(info)
        if module not in self._drivers:
            self._drivers[module] = self._stack.enter_context(
                Drivers(
                    module,
                    python=self._options.python,
                    progress=lambda number, total: self._show(module, number, total),
                    timeout=self._options.timeout,
                )
            )
        settings = recorded_policy(info, self._options.policy)
        self.has_used_policy |= bool(settings)
        options = ReplayOptions(settings=settings, model=self._options.model)
        return self._drivers[module].submit(ReplayRequest(path, str(output), options))

    def _show(self, module: str, num_complete: float, total: int) -> None:
        self._complete[module] = num_complete, total
        complete = self._complete.values()
        self._progress(sum(own for own, _ in complete), sum(own for _, own in complete))


def _engine_of(path: str) -> EngineInfo:
    """Returns the engine of a recording.

    Raises:
        RecordingError: It cannot be read.
        WorkloadError: It is damaged, or does not describe its engine.
    """
    with FileStore(path) as recording:
        recording.require()
        damage, info = recording.damage, recording.at(recording.last).info
    if damage:
        raise WorkloadError(f"{damage}; only a whole run can be replayed")
    if info is None:
        raise WorkloadError("the recording does not describe its engine")
    return info


def _finish(
    test: RecordedTest, replay: Future[ReplayResult], output: Path, coverage: _Coverage
) -> None:
    """Waits for the replay of a recording, and compares it."""
    try:
        result = replay.result()
    except DriverFailedError as error:
        test.outcome, test.problem = "failed", str(error)
        return
    except DriverError as error:
        test.outcome, test.problem = "not replayed", str(error)
        return
    if result.error is not None and not result.has_failed:
        test.outcome, test.problem = "not replayed", result.error
        return
    counter = DecisionCounter()
    with FileStore(test.path) as recording:
        recorded = RunDecisions(recording, readers=[counter], reads_waits=False)
        starts_late = recording.at(recording.first).step >= 0
    with FileStore(output) as recording:
        repeated = RunDecisions(recording, reads_waits=False)
    output.unlink()
    coverage.add(recorded, counter)
    test.num_requests = len(recorded.requests)
    test.proof = prove(recorded, repeated, starts_late=starts_late)
    test.refused = result.refused
    if result.has_failed:
        test.outcome, test.problem = "failed", result.error or ""
    elif not test.proof.is_proven:
        test.outcome = "different"


class _Coverage:
    """The kinds of decisions that recordings have."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._num_recordings: Counter[str] = Counter()
        self._names: set[str] = set()
        """The kinds of all schedulers that are tested."""

    def add(self, run: RunDecisions, counter: DecisionCounter) -> None:
        """Adds those of a recording."""
        if run.info is not None:
            self._names |= {kind.name for kind in kinds_of(run.info.engine)}
        self._counts += counter.counts
        self._num_recordings.update(name for name, count in counter.counts.items() if count)

    def decisions(self) -> list[Coverage]:
        """Returns the kinds, in their order."""
        return [
            Coverage(
                name=kind.name,
                title=kind.title,
                meaning=kind.meaning,
                count=self._counts[kind.name],
                num_recordings=self._num_recordings[kind.name],
            )
            for kind in KINDS
            if kind.name in self._names
        ]
