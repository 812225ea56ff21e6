"""`seqtop record`, from outside."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from seqtop.cli import main, record
from seqtop.history import FileStore
from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport.connection import Connection, ConnectionState
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire import codec, parsing
from seqtop.wire.messages import EngineInfo
from tests.support.commands import SEQTOP, assert_one_sentence, run, run_here
from tests.support.events import arrival, engine_info
from tests.support.forked import start
from tests.support.hand_driven import HandDrivenEngine
from tests.support.random_engine import RandomEngine
from tests.support.recordings import final_state
from tests.support.waiting import SECONDS, wait_until


def command(*arguments: str | Path) -> subprocess.Popen[str]:
    return start(
        [sys.executable, "-m", "seqtop", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_record_command_ends_cleanly_on_a_signal(
    endpoint: str, tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "run.seqtop"
    info, *events, _ = RandomEngine(21, 60)
    assert isinstance(info, EngineInfo)
    with MessagePublisher(endpoint, info, EngineState()) as engine:
        recording = command("record", endpoint, "-o", path)
        try:
            wait_until(path.exists)
            wait_until(lambda: path.stat().st_size > 26)  # it holds the first keyframe
            for event in events:
                engine.publish(event)
            wait_until(lambda: final_state(path).step == 59)
            recording.send_signal(number)
            out, err = recording.communicate(timeout=SECONDS)
        finally:
            recording.kill()
    assert recording.returncode == 0, err
    assert err == f"seqtop: recording {endpoint} to {path}\n"
    assert "60 steps" in out
    assert ", 0 gaps" in out
    assert f"{path.stat().st_size:,} bytes" in out
    assert path.stat().st_mode & 0o777 == 0o600
    wanted = EngineState()
    for event in (info, *events):
        wanted.apply(parsing.event(codec.encode(event)))
    with FileStore(path) as read:
        assert read.damage is None
        read_back = read.at(read.last)
    assert read_back.requests == wanted.requests
    assert read_back.sequences == wanted.sequences


def test_record_command_ends_after_its_duration(
    endpoint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "run.seqtop"
    listeners: list[int] = []  # at the end of each session: that of its history
    close = Session.close
    monkeypatch.setattr(
        Session, "close", lambda self: (listeners.append(len(self._listeners)), close(self))
    )
    arguments = ["record", endpoint, "-o", str(path), "--duration", "0.2"]
    with MessagePublisher(endpoint, engine_info(), EngineState()):
        assert main.main(arguments) == 0
        assert "messages" in capsys.readouterr().out
        assert main.main(arguments) == 1
        assert f"{path} exists already" in capsys.readouterr().err
        assert main.main([*arguments, "--force"]) == 0
    assert final_state(path).info == engine_info()
    assert listeners == [1, 1, 1]


def test_record_command_says_that_its_file_was_removed_or_replaced(
    endpoint: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.seqtop"
    with MessagePublisher(endpoint, engine_info(), EngineState()):
        recording = command("record", endpoint, "-o", path)
        try:
            wait_until(path.exists)
            wait_until(lambda: path.stat().st_size)  # before, an empty file keeps its place
            path.unlink()
            assert recording.stderr is not None
            assert recording.stderr.readline().startswith("seqtop: recording ")
            assert recording.stderr.readline() == (
                f"seqtop: {path} was removed while it was recorded; it is written again, from its"
                " start\n"
            )
            assert path.exists()
            other = run(
                *SEQTOP, "record", endpoint, "-o", str(path), "--force", "--duration", "0.2"
            )
            assert other.returncode == 0, other.stderr
            out, err = recording.communicate(timeout=SECONDS)
        finally:
            recording.kill()
    assert (recording.returncode, out) == (1, "")
    assert err == (
        f"seqtop: {path} was replaced by another file while it was recorded; the recording ends\n"
    )
    assert final_state(path).info == engine_info()


def test_record_command_says_when_nobody_answers(
    endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.seqtop"
    assert main.main(["record", endpoint, "-o", str(path), "--timeout", "0.1"]) == 1
    assert f"no engine answered at {endpoint} within 0.1 s" in capsys.readouterr().err
    assert not path.exists()


def test_record_command_says_when_the_engine_went_silent(
    endpoint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "run.seqtop"
    arguments = ["record", endpoint, "-o", str(path), "--duration", "0.3", "--force"]
    with MessagePublisher(endpoint, engine_info(), EngineState()):  # which has its heartbeats
        assert main.main(arguments) == 0
    assert "no message" not in capsys.readouterr().err
    monkeypatch.setattr("seqtop.cli.record._SILENCE_SECONDS", 0.2)
    with HandDrivenEngine(endpoint) as engine:  # which has none, as if it had been killed

        def be_found() -> None:
            engine.await_viewer()
            engine.answer()

        engine.send(engine_info())
        thread = threading.Thread(target=be_found)
        thread.start()
        assert main.main(arguments) == 0
        thread.join()
    output = capsys.readouterr()
    assert ", 0 messages" in output.out
    silent = rf"seqtop: no message from {endpoint} for \d+\.\d s; is the engine still running"
    assert re.search(silent, output.err)


@pytest.mark.parametrize(
    ("state", "silence", "warning"),
    [
        (ConnectionState.LIVE, 1.9, None),
        (ConnectionState.LIVE, 2.0, "no message from ipc:///e for 2.0 s; is the engine still"),
        (ConnectionState.LOST, 0.1, "no message from ipc:///e for 0.1 s; is the engine still"),
        (ConnectionState.STOPPED, 0.1, "no message from ipc:///e for 0.1 s: the detail"),
    ],
)
def test_silence_is_described_by_the_connection(
    state: ConnectionState, silence: float, warning: str | None
) -> None:
    described = record._describe_silence(Connection("ipc:///e", state, "the detail"), silence)
    assert (described and described.removesuffix(" running there?")) == warning


def test_record_command_says_that_the_engine_stopped(endpoint: str, tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    recording = command("record", endpoint, "-o", path)
    try:
        with MessagePublisher(endpoint, engine_info(), EngineState()):
            wait_until(path.exists)
            wait_until(lambda: path.stat().st_size > 26)  # it holds the first keyframe
        wait_until(lambda: final_state(path).stopped is not None)
        recording.send_signal(signal.SIGINT)
        _, err = recording.communicate(timeout=SECONDS)
    finally:
        recording.kill()
    assert recording.returncode == 0, err
    assert re.search(rf"no message from {endpoint} for \d+\.\d s: ", err)


def test_killed_recorder_leaves_what_it_had_flushed(endpoint: str, tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    with MessagePublisher(endpoint, engine_info(), EngineState()) as engine:
        recording = command("record", endpoint, "-o", path)
        try:
            wait_until(path.exists)
            engine.publish(arrival(1))
            wait_until(lambda: "req-1" in final_state(path).requests)
        finally:
            os.kill(recording.pid, signal.SIGKILL)
            recording.communicate()
    with FileStore(path) as read:
        assert "was not closed" in (read.damage or "")
        assert "req-1" in read.at(read.last).requests


def test_record_then_check_the_recording(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "run.seqtop")
    assert run(*SEQTOP, "record", engine, "-o", file, "--duration", "1").returncode == 0
    done = run_here(capsys, "check", file, "--json")
    assert done.returncode == 0, done.stdout
    report = json.loads(done.stdout)
    assert report["findings"] == []
    assert report["num_steps"] > 0
    assert report["num_gaps"] == 0
    again = run_here(capsys, "record", engine, "-o", file, "--duration", "2")
    assert_one_sentence(again, 1, f"{file} exists already; --force replaces it")
    shown = run_here(capsys, "show", file, "--json")
    assert json.loads(shown.stdout)["connection"]["state"] == "replay"
    assert "typed-1" in run_here(capsys, "show", file).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ("-o/--output", "--flight-recorder", "required")),
        (["-o", "x", "--flight-recorder", "d"], ("not allowed with",)),
        (["-o", "x", "--slo", "ttft=1"], ("--slo needs --flight-recorder",)),
        (["-o", "x", "--on", "kv>9%"], ("--on needs --flight-recorder",)),
        (["-o", "x", "--run", "true"], ("--run needs --flight-recorder",)),
        (["--flight-recorder", "d", "--on", "kv>>"], ("kv> needs a number",)),
        (["--flight-recorder", "d", "--run", "'"], ("cannot be split into words",)),
        (["--flight-recorder", "d", "--webhook", "ftp://h"], ("no address of a web server",)),
        (["--flight-recorder", "d", "--force"], ("--force needs --output",)),
        (["--flight-recorder", "d", "--slo", "tft=1"], ("no objective 'tft'",)),
        (["--flight-recorder", "d", "--threshold", "thrash=1"], ("no threshold 'thrash'",)),
    ],
)
def test_options_of_a_file_and_of_a_flight_recorder_are_apart(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_one_sentence(run_here(capsys, "record", *arguments), 2, *words)


def test_flight_recorder_of_an_engine_that_runs_already(
    endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with MessagePublisher(endpoint, engine_info(), EngineState()) as engine:
        recorder = command("record", endpoint, "--flight-recorder", tmp_path / "records")
        try:
            assert recorder.stderr is not None
            assert "the flight recorder of" in recorder.stderr.readline()
            engine.publish(arrival(1))
            engine.publish(arrival(1))  # announced twice
            assert ": unknown: " in f": {recorder.stderr.readline()}"
            recorder.send_signal(signal.SIGTERM)
            out, err = recorder.communicate(timeout=SECONDS)
        finally:
            recorder.kill()
    assert (recorder.returncode, out, err) == (0, "", "")
    (record,) = (tmp_path / "records").glob("*.seqtop")
    done = run_here(capsys, "check", str(record))
    assert done.stdout.startswith("before the first step")
