"""Engines that fail in ten ways, each a process with a flight recorder of its own."""

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import psutil
import pytest

from benchmarks.scenes import Crowd
from seqtop.checks.report import check_recording
from seqtop.checks.thresholds import Thresholds
from seqtop.flight_recorder import process
from seqtop.flight_recorder.recorder import (
    INCIDENT_SECONDS,
    MAX_BYTES,
    MAX_RECORDS,
    FlightRecorder,
    recent_history,
)
from seqtop.history import FileStore
from seqtop.live.session import Session
from seqtop.sequence import RequestMetrics
from seqtop.state import EngineState
from seqtop.state.slo import Slo
from seqtop.transport.connection import UnreachableError
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire.messages import EngineStopped, Event
from tests.support import faulty_engine
from tests.support.events import arrival, engine_info, stats, step, update
from tests.support.scripted import ScriptedSource
from tests.support.waiting import SECONDS, wait_until

THRESHOLDS = (
    "no_progress_seconds=0.5,empty_seconds=0.5,no_progress_steps=50,"
    "stalled_seconds=0.5,stalled_steps=20"
)
MAX_MEMORY = 100 * 2**20
NUM_LARGE_STEPS = 1_600


class Engine(NamedTuple):
    """A faulty engine that runs."""

    process: subprocess.Popen[str]
    directory: Path
    recorder: int
    """The process id of its recorder."""

    def records(self) -> list[Path]:
        return sorted(self.directory.glob("*.json"))


@contextlib.contextmanager
def running(fault: str, endpoint: str, directory: Path, options: str = "") -> Iterator[Engine]:
    """A faulty engine, killed at the end if it has not ended before."""
    command = [sys.executable, "-m", "tests.support.faulty_engine"]
    process = subprocess.Popen(
        [*command, fault, endpoint, str(directory), f"--threshold {THRESHOLDS} {options}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    recorder = int(process.stdout.readline())
    try:
        line = process.stderr.readline()
        assert line == f"seqtop: the flight recorder of {endpoint} writes to {directory}\n"
        process.stdin.write("\n")
        process.stdin.flush()
        yield Engine(process, directory, recorder)
    finally:
        if process.poll() is None:  # its recorder learns it first, or it would wait and record that
            psutil.Process(recorder).terminate()
        process.kill()
        process.communicate(timeout=SECONDS)  # the recorder holds standard error until it ends


def read(record: Path) -> dict[str, Any]:
    verdict: dict[str, Any] = json.loads(record.read_text())
    return verdict


def is_asleep(pid: int) -> bool:
    """Returns whether no thread of a process runs or is ready to run."""
    states = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(state.rpartition(")")[2].split()[0] == "S" for state in states)


HANGS = {
    "hang_in_a_step": ("no-progress", ["req-1"]),
    "admit_nothing": ("no-progress", ["req-1"]),
    "leave_a_prefill": ("orphan", ["req-1"]),
    "wait_for_each_other": ("deadlock", ["req-1"]),
    "preempt_for_ever": ("thrash", ["req-1"]),
    "stop_publishing": ("silent", ["req-1", "req-2"]),
    "miss_an_objective": ("slo", ["req-2"]),
}
"""The cause of each, and the requests that are concerned."""
MESSAGES = {
    "hang_in_a_step": r"no step has ended for \d\.\d s \(after step 2\); 2 requests unfinished",
    "admit_nothing": r"\d+ steps and \d+\.\d s without a computed token; 2 requests unfinished, 0"
    r" run; 64 blocks available, the first request needs 1",
    "leave_a_prefill": r"it has no source of progress, in \d+ steps and \d\.\d s: it runs, in no"
    r" batch since step 0",
    "wait_for_each_other": r"req-1 misses 1 block: 0 are available, and requests that wait behind"
    r" it hold 64 \(1 request\)\. Aborting req-2 frees 64 blocks",
    "preempt_for_ever": r"preempted 4 times since step \d+, and 0 tokens gained meanwhile, for"
    r" which 3 tokens were computed again; 4 computed tokens lost in 4 preemptions",
    "stop_publishing": r"nothing was received for 3\.5 s; the process that publishes has not ended;"
    r" 2 requests unfinished after step 0",
    "miss_an_objective": r"req-2 missed TTFT \d+ ms \(limit 200 ms\)",
}


@pytest.mark.parametrize("fault", HANGS)
def test_hang_leaves_one_record_with_the_right_verdict(
    fault: str, endpoint: str, tmp_path: Path
) -> None:
    cause, request_ids = HANGS[fault]
    options = "--slo ttft=0.2" if cause == "slo" else ""
    with running(fault, endpoint, tmp_path / "records", options) as engine:
        wait_until(engine.records)
        assert psutil.Process(engine.recorder).memory_info().rss < MAX_MEMORY
        (record,) = engine.records()
    verdict = read(record)
    assert verdict["cause"] == cause
    assert re.fullmatch(MESSAGES[fault], verdict["message"]), verdict["message"]
    assert verdict["request_ids"] == request_ids
    assert verdict["problem"] is None
    if fault == "hang_in_a_step":
        assert any(line.endswith(f" in {fault}") for line in verdict["stacks"])
    path = record.with_name(verdict["recording"])
    with FileStore(path) as recording:
        state = recording.at(recording.last)
    assert recording.damage is None
    assert state.step >= verdict["step"], "the verdict is written first, while the engine goes on"
    assert [*state.requests] == ["req-1", "req-2"]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in (record, path))


@pytest.mark.release("half a minute")
def test_memory_with_a_full_ring(endpoint: str, tmp_path: Path) -> None:
    """Also while a record is written; the metrics are random, and so cannot be compressed.

    A step is published once a session has the step before and no thread of the recorder runs, so
    that no message is lost on a busy machine.
    """
    crowd, random = Crowd(256), Random(0)
    with (
        MessagePublisher(endpoint, crowd.info, EngineState()) as publisher,
        process.started(endpoint, tmp_path) as recorder,
    ):
        wait_until(lambda: publisher.has_viewers)
        for event in islice(crowd.arrivals(), 1, None):
            publisher.publish(event)
        with Session(endpoint) as session:
            for _ in range(NUM_LARGE_STEPS):
                large = crowd.step(range(crowd.size))
                for number in range(crowd.size):
                    arrived, scheduled, first, last = sorted(random.random() for _ in range(4))
                    large.metrics[f"req-{number}"] = RequestMetrics(
                        arrived, last, scheduled, first, time_in_queue=scheduled - arrived
                    )
                publisher.publish(large)
                wait_until(
                    lambda: session.state.step == large.step and is_asleep(recorder.pid)  # noqa: B023
                )
        # A failure is recorded whatever has been recorded before.
        publisher.publish(EngineStopped(large.time, "the device is lost", failed=True))
        wait_until(lambda: [*tmp_path.glob("*-failed.seqtop")])
        status = Path(f"/proc/{recorder.pid}/status").read_text()
        recorder.terminate()
        recorder.wait(SECONDS)
    (record,) = tmp_path.glob("*-failed.seqtop")
    assert record.stat().st_size > MAX_BYTES / 2, "the ring was meant to be full"
    assert publisher.num_dropped == 0
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    assert int(peak) * 1024 < MAX_MEMORY


@pytest.mark.parametrize(
    ("fault", "cause", "message"),
    [
        ("be_killed", "ended", "the process that publishes was killed or crashed"),
        ("fail", "failed", "the device is lost; 2 requests unfinished"),
    ],
)
def test_end_of_an_engine_is_recorded_and_ends_the_recorder(
    fault: str, cause: str, message: str, endpoint: str, tmp_path: Path
) -> None:
    with running(fault, endpoint, tmp_path) as engine:
        _, log = engine.process.communicate(timeout=SECONDS)
        (record,) = engine.records()
    verdict = read(record)
    assert (verdict["cause"], verdict["request_ids"]) == (cause, ["req-1", "req-2"])
    assert verdict["message"].startswith(message)
    assert [request["num_output_tokens"][0] > 0 for request in verdict["unfinished"]] == [
        False,
        True,
    ]
    path = record.with_suffix(".seqtop")
    assert log.splitlines()[-1] == f"seqtop: {cause}: {verdict['message']}; recorded in {path}"
    report = check_recording(path)
    assert (report.findings, report.complete, report.num_steps) == ([], True, 3)


def test_engine_that_somebody_ends_leaves_no_record(endpoint: str, tmp_path: Path) -> None:
    with running("end", endpoint, tmp_path) as engine:
        _, log = engine.process.communicate(timeout=SECONDS)
    assert log == ""
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("option", "is_redacted"), [("", True), ("--no-redact", False)])
def test_record_is_redacted_unless_told_otherwise(
    option: str, is_redacted: bool, endpoint: str, tmp_path: Path
) -> None:
    with running("fail", endpoint, tmp_path, option) as engine:
        engine.process.communicate(timeout=SECONDS)
        (record,) = engine.records()
    with FileStore(record.with_suffix(".seqtop")) as recording:
        state = recording.at(recording.last)
    shown = [request.prompt for request in state.requests.values()]
    assert shown == [None if is_redacted else faulty_engine.PROMPT] * 2
    assert read(record)["redacted"] is is_redacted
    assert (state.sequences[2].text == "") is is_redacted


class Clock:
    """The time of `time.monotonic` in a flight recorder."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def read(self) -> float:
        self.now += 1e-6
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("seqtop.flight_recorder.recorder.time.monotonic", clock.read)
    return clock


class Watched:
    """A flight recorder of a source in this process, whose time passes when a test says so."""

    def __init__(
        self, directory: Path, source: ScriptedSource | None = None, **options: Any
    ) -> None:
        self.source = source or ScriptedSource(engine_info(), history=recent_history())
        self.log: list[str] = []
        self.recorder = FlightRecorder(
            cast(Session, self.source),
            directory,
            redact=False,
            thresholds=Thresholds(no_progress_steps=3),
            log=self.log.append,
            **{"slo": Slo()} | options,
        )
        self._number = 0

    def run(self, *events: Event) -> list[str]:
        """Applies events, and returns what the recorder says about them."""
        for event in events:
            self.source.apply(event)
        before = len(self.log)
        self.recorder.run(threading.Event(), duration=1e-5)
        return [line.partition(":")[0] for line in self.log[before:]]

    def steps(self, count: int, **fields: Any) -> list[Event]:
        self._number += count
        return [step(number, **fields) for number in range(self._number - count, self._number)]


def test_an_incident_has_one_record(tmp_path: Path, clock: Clock) -> None:
    """Also if its causes are many, and if one that says more follows a missed objective."""
    watched = Watched(tmp_path, slo=Slo(ttft=0.2))
    late = RequestMetrics(1.0, 100.5, 100.0, 100.5, 99.0)
    computes = stats(num_prefill_tokens=1)
    touched = update(1)
    with watched.recorder.watching():
        missed = watched.steps(1, stats=computes, sequences=[touched], metrics={"req-1": late})
        assert watched.run(arrival(1), *missed) == ["slo"]
        assert watched.run(*watched.steps(5)) == ["no-progress"]
        again = [*watched.steps(1, stats=computes), *watched.steps(5)]
        assert watched.run(*again) == [], "the same cause"
        assert watched.run(*watched.steps(2, stats=stats(num_free_blocks=63))) == ["pool-sum"]
        (record,) = tmp_path.glob("*.json")
        verdict = read(record)
        assert verdict["cause"] == "no-progress"
        assert [further["cause"] for further in verdict["also"]] == ["slo", "pool-sum"]
        assert verdict["also"][0]["request_ids"] == ["req-1"]
        assert [path.name for path in tmp_path.glob("*.seqtop")] == [verdict["recording"]]
        clock.now += INCIDENT_SECONDS
        assert watched.run(*watched.steps(2, stats=stats(num_free_blocks=62))) == ["pool-sum"]
        again = [*watched.steps(1, stats=computes), *watched.steps(5)]
        assert watched.run(*again) == ["no-progress"]
        assert watched.run(EngineStopped(time=200.0, reason="a fault", failed=True)) == ["failed"]
        verdict = read(next(tmp_path.glob("*-failed.json")))
        assert [further["cause"] for further in verdict["also"]] == ["pool-sum", "no-progress"]
    assert len([*tmp_path.glob("*.json")]) == 2
    assert watched.source.listeners == [watched.source.history.record], "it watches no more"


def test_the_same_cause_is_recorded_less_and_less_often(tmp_path: Path, clock: Clock) -> None:
    watched = Watched(tmp_path)
    times = []
    with watched.recorder.watching():
        watched.run(arrival(1))
        for _ in range(100):
            clock.now += 30.0
            watched.run(*watched.steps(1, stats=stats(num_prefill_tokens=1)))
            if watched.run(*watched.steps(8)):
                times.append(clock.now)
    between = [round(later - earlier) for earlier, later in pairwise(times)]
    assert between == [60, 120, 240, 480, 600, 600, 600]


def test_a_record_for_which_there_is_no_room_is_tried_again(tmp_path: Path, clock: Clock) -> None:
    """Its verdict is written, and nothing that is not complete."""
    watched = Watched(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with watched.recorder.watching():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_800, hard))
        try:
            assert watched.run(arrival(1), *watched.steps(300)) == ["no-progress"]
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        (record,) = tmp_path.iterdir()
        assert "; no recording, as " in watched.log[0]
        assert "File too large" in read(record)["problem"]
        assert watched.run() == []
        clock.now += 10.0
        assert watched.run() == ["no-progress"]
    assert sorted(tmp_path.iterdir()) == [record, record.with_suffix(".seqtop")]
    assert read(record)["problem"] is None
    report = check_recording(record.with_suffix(".seqtop"))
    assert report.num_steps == 300


def test_an_engine_that_ends_before_its_state_was_received(endpoint: str, tmp_path: Path) -> None:
    ended = threading.Event()
    ended.set()
    nothing = cast(ScriptedSource, Session(endpoint, history=recent_history()))
    watched = Watched(tmp_path, nothing, publisher_ended=ended)
    with watched.recorder.watching(), pytest.raises(UnreachableError, match="ended before"):
        watched.recorder.await_engine(SECONDS)
    (record,) = tmp_path.iterdir()
    verdict = read(record)
    assert (verdict["cause"], verdict["recording"], verdict["problem"]) == ("ended", None, None)
    assert watched.log == [f"ended: {verdict['message']}; recorded in {record}"]


def test_directory_has_a_limited_number_of_records(tmp_path: Path) -> None:
    old = [tmp_path / f"flight-20200101-0000{number:02}-1-silent" for number in range(30)]
    for path in old:
        for suffix in (".seqtop", ".json"):
            path.with_suffix(suffix).touch()
    (tmp_path / "flight-plan.json").touch()
    watched = Watched(tmp_path)
    with watched.recorder.watching():
        assert watched.run(arrival(1), *watched.steps(5)) == ["no-progress"]
    left = sorted(tmp_path.glob("*.seqtop"))
    assert left[:-1] == [path.with_suffix(".seqtop") for path in old[-MAX_RECORDS + 1 :]]
    assert len([*tmp_path.glob("*.json")]) == MAX_RECORDS + 1


def test_newest_records_stay_whatever_others_are_called(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock was ahead, and while the recorder runs, files are put beside its records."""

    def put(year: int, count: int) -> None:
        for number in range(count):
            path = tmp_path / f"flight-{year}0101-0000{number:02}-1-silent.seqtop"
            path.touch()
            os.utime(path, (2**32, 2**32))

    put(2098, MAX_RECORDS)
    watched = Watched(tmp_path)
    own = []
    with watched.recorder.watching():
        watched.run(arrival(1))
        for number in range(4):
            clock.now += 1_000.0
            stamp = f"20260101-00000{number}"
            monkeypatch.setattr(
                "seqtop.flight_recorder.recorder.time.strftime", lambda _, stamp=stamp: stamp
            )
            watched.run(*watched.steps(1, stats=stats(num_prefill_tokens=1)))
            assert watched.run(*watched.steps(5)) == ["no-progress"]
            own.append(sorted(path.name[15:22] for path in tmp_path.glob("*-no-progress.seqtop")))
            assert len([*tmp_path.glob("*.seqtop")]) == MAX_RECORDS
            if number == 0:
                put(2099, MAX_RECORDS - 2)
    assert own == [
        ["-000000"],
        ["-000000", "-000001"],
        ["-000001", "-000002"],  # the files that were put there are older than these
        ["-000001", "-000002", "-000003"],
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_files_of_other_users_are_no_records(tmp_path: Path) -> None:
    for number in range(30):
        path = tmp_path / f"flight-20990101-0000{number:02}-1-silent.seqtop"
        path.touch()
        os.chown(path, 65534, 65534)
    watched = Watched(tmp_path)
    with watched.recorder.watching():
        assert watched.run(arrival(1), *watched.steps(5)) == ["no-progress"]
    assert len([*tmp_path.glob("*.seqtop")]) == 31


def test_engine_that_has_taken_the_place_of_one_that_ended_is_not_blamed(tmp_path: Path) -> None:
    ended = threading.Event()
    watched = Watched(tmp_path, publisher_ended=ended)
    with watched.recorder.watching():
        assert watched.run(arrival(1), step(7)) == []
        other = EngineState()
        other.apply(engine_info(incarnation="two"))
        other.apply(arrival(2))
        watched.source.replace(other)
        ended.set()
        assert watched.run() == ["ended"]
    (record,) = tmp_path.glob("*.json")
    verdict = read(record)
    assert (verdict["request_ids"], verdict["incarnation"]) == (["req-1"], "one")
    assert verdict["message"].endswith("not announced; 1 request unfinished after step 7")


def test_record_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    watched = Watched(tmp_path / "records")
    (tmp_path / "records").rmdir()
    with watched.recorder.watching():
        watched.run(arrival(1), *watched.steps(5))
    (line,) = watched.log
    assert line.startswith("no-progress: 3 steps and ")
    assert "; no record, as " in line
