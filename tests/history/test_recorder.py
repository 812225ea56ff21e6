"""Histories and recordings of live sessions, over real sockets; the command from outside."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from seqtop.cli import main
from seqtop.connection import ConnectionState
from seqtop.history import FileStore, FileWriter, RecordingError, final_state
from seqtop.history.memory_store import MemoryStore
from seqtop.history.recorder import Recorder
from seqtop.history.timeline import Timeline
from seqtop.sequence import SequenceStatus
from seqtop.session import Session
from seqtop.state import EngineState
from seqtop.state.freeze import freeze
from seqtop.transport.publisher import Publisher
from seqtop.wire import codec, parsing
from seqtop.wire.frames import Frame
from seqtop.wire.messages import Event, SequenceUpdate
from tests.support.event_script import EventScript
from tests.support.hand_driven import HandDrivenEngine, arrival, engine_info, step
from tests.support.waiting import SECONDS, wait_until


class Witness:
    """A listener that keeps a copy of every state it is shown."""

    def __init__(self) -> None:
        self.seen: list[EngineState] = []

    def append(self, number: int, payload: bytes, event: Event, state: EngineState) -> None:
        assert codec.encode(event) == payload
        self.seen.append(codec.decode(codec.encode(state), EngineState))

    def restore(self, incarnation: str, number: int, state: EngineState) -> None:
        self.seen.append(codec.decode(codec.encode(state), EngineState))


def live_through_a_gap_and_a_restart(endpoint: str, session: Session) -> None:
    with HandDrivenEngine(endpoint) as engine:
        engine.send(engine_info())
        engine.send(arrival(1))
        session.start()
        engine.await_viewer()
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        for number in range(3):
            engine.send(step(number))
        for number in (2, 3):
            engine.send(arrival(number), lose=True)
        engine.send(arrival(4))
        wait_until(lambda: session.link.state is ConnectionState.SYNCING)
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        engine.send(step(3))
        wait_until(lambda: session.state.step == 3)
    with HandDrivenEngine(endpoint, incarnation="two") as engine:
        engine.await_viewer()
        engine.send(engine_info(incarnation="two"))
        engine.answer()
        wait_until(lambda: session.state.info and session.state.info.incarnation == "two")
        wait_until(lambda: session.link.state is ConnectionState.LIVE)
        engine.send(arrival(9))
        wait_until(lambda: "req-9" in session.state.requests)


def assert_holds(timeline: Timeline, seen: list[EngineState]) -> None:
    """Everything that was ever shown is still there, gap and restart or not."""
    assert timeline.last + 1 == len(seen)
    for position, state in enumerate(seen):
        assert timeline.at(position) == state
    assert [(gap.restarted, gap.num_missed) for gap in timeline.gaps] == [(False, 3), (True, 1)]


def test_session_is_recorded_across_a_gap_and_a_restart(endpoint: str, tmp_path: Path) -> None:
    witness, path = Witness(), tmp_path / "run.seqtop"
    recorder = Recorder(FileWriter(path))
    session = Session(endpoint)
    session.listen(witness)
    session.listen(recorder)
    try:
        live_through_a_gap_and_a_restart(endpoint, session)
    finally:
        session.close()
        recorder.close()
    assert recorder.error is None
    assert_holds(session.history, witness.seen)
    with FileStore(path) as recording:
        assert recording.damage is None
        assert_holds(recording, witness.seen)
        found = [list(recording.at(position).requests) for position in (3, 4, 7)]
        assert found == [["req-1"], ["req-1", "req-2", "req-3", "req-4"], ["req-9"]]
    assert recorder.num_gaps == 2
    assert recorder.num_steps == 4
    assert recorder.num_messages == 5


def test_recording_begins_in_the_middle_of_a_session_and_ends_there(
    endpoint: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.seqtop"
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        engine.send(engine_info())
        engine.send(arrival(1))
        wait_until(lambda: session.sequence_number == 1)
        recorder = Recorder(FileWriter(path))
        session.listen(recorder)
        engine.send(arrival(2))
        wait_until(lambda: recorder.num_messages == 1)
        session.unlisten(recorder)
        recorder.close()
        engine.send(arrival(3))
        wait_until(lambda: session.sequence_number == 3)
    with FileStore(path) as recording:
        assert [list(recording.at(position).requests) for position in (0, 1)] == [
            ["req-1"],
            ["req-1", "req-2"],
        ]
        assert recording.last == 1
        assert recording.index[0].number == 1


def test_recorder_flushes_by_itself(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqtop.history.recorder.FLUSH_SECONDS", 0.05)
    path = tmp_path / "run.seqtop"
    recorder = Recorder(FileWriter(path))
    state = EngineState()
    recorder.restore("one", -1, state)
    event = arrival(1)
    state.apply(event)
    recorder.append(0, codec.encode(event), event, state)
    wait_until(lambda: list(final_state(path).requests) == ["req-1"])
    recorder.close()


def test_disk_that_fails_ends_the_recording_and_not_the_session(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(FileWriter(tmp_path / "run.seqtop"))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        session.listen(recorder)
        monkeypatch.setattr("seqtop.history.file_writer.os.write", full)
        engine.await_viewer()
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        engine.send(arrival(1))
        wait_until(lambda: "req-1" in session.state.requests)
        assert "No space left on device" in (recorder.error or "")
    recorder.close()
    assert recorder.num_messages == 0


def test_finished_requests_of_a_paused_state_do_not_change_under_it(endpoint: str) -> None:
    script = [codec.encode(event) for event in EventScript(3, 60)]
    session = Session(endpoint, history=MemoryStore(max_bytes=0))
    for payload in script:
        session.state.apply(parsing.event(payload))
    ended = session.state.finished[0]
    seq_id = session.state.requests[ended].seq_ids[0]
    paused = freeze(session.state)
    before = msgspec.structs.asdict(paused.sequences[seq_id])
    update = SequenceUpdate(
        seq_id=seq_id, status=SequenceStatus.RUNNING, num_computed_tokens=1, text_delta="boo"
    )
    payload = codec.encode(step(99, sequences=[update]))
    session.apply(Frame("one", 0, payload), parsing.event(payload))
    assert session.state.sequences[seq_id].text.endswith("boo")
    assert msgspec.structs.asdict(paused.sequences[seq_id]) == before


def command(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
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
    info, *events, _ = EventScript(21, 60)
    with Publisher(endpoint, info, EngineState()) as engine:
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
        found = read.at(read.last)
    assert found.requests == wanted.requests
    assert found.sequences == wanted.sequences


def test_record_command_ends_after_its_duration(
    endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.seqtop"
    arguments = ["record", endpoint, "-o", str(path), "--duration", "0.2"]
    with Publisher(endpoint, engine_info(), EngineState()):
        assert main.main(arguments) == 0
        assert "messages" in capsys.readouterr().out
        assert main.main(arguments) == 1
        assert f"{path} exists already" in capsys.readouterr().err
        assert main.main([*arguments, "--force"]) == 0
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
    with Publisher(endpoint, engine_info(), EngineState()):  # which has its heartbeats
        assert main.main(arguments) == 0
    assert "nothing has come" not in capsys.readouterr().err
    monkeypatch.setattr("seqtop.cli.record_engine._SILENCE_SECONDS", 0.2)
    with HandDrivenEngine(endpoint) as engine:  # which has none, as if it had been killed

        def be_found() -> None:
            engine.await_viewer()
            engine.answer()

        engine.send(engine_info())
        thread = threading.Thread(target=be_found)
        thread.start()
        assert main.main(arguments) == 0
        thread.join()
    told = capsys.readouterr()
    assert ", 0 messages" in told.out
    silent = rf"seqtop: nothing has come from {endpoint} for \d+\.\d s; is the engine still running"
    assert re.search(silent, told.err)


def test_record_command_says_that_the_engine_stopped(endpoint: str, tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    recording = command("record", endpoint, "-o", path)
    try:
        with Publisher(endpoint, engine_info(), EngineState()):
            wait_until(path.exists)
            wait_until(lambda: path.stat().st_size > 26)  # it holds the first keyframe
        wait_until(lambda: final_state(path).stopped is not None)
        recording.send_signal(signal.SIGINT)
        _, err = recording.communicate(timeout=SECONDS)
    finally:
        recording.kill()
    assert recording.returncode == 0, err
    assert re.search(rf"nothing has come from {endpoint} for \d+\.\d s: ", err)


def test_killed_recorder_leaves_what_it_had_flushed(endpoint: str, tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    with Publisher(endpoint, engine_info(), EngineState()) as engine:
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


@pytest.mark.parametrize("argument", ["0", "-1", "inf", "nan", "soon"])
def test_speeds_that_make_no_sense_are_refused(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main(["replay", "run.seqtop", "--speed", argument])
    assert "is not a positive number" in capsys.readouterr().err


def test_replay_command_names_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["replay", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err
    with pytest.raises(RecordingError):
        final_state(tmp_path)
