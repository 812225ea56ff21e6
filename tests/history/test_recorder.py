"""Recordings of live sessions, over real sockets."""

from pathlib import Path

import pytest

from seqtop.history import FileStore, FileWriter
from seqtop.history.recorder import Recorder
from seqtop.history.timeline import Timeline
from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.transport.connection import ConnectionState
from seqtop.wire import codec
from tests.support.events import arrival, engine_info, step
from tests.support.hand_driven import HandDrivenEngine
from tests.support.recordings import final_state
from tests.support.waiting import SECONDS, wait_until


class StateCopier:
    """A listener that copies every state."""

    def __init__(self) -> None:
        self.states: list[EngineState] = []

    def note(self, change: StateChange) -> None:
        if change.event is not None:
            assert codec.encode(change.event) == change.payload
        self.states.append(codec.decode(codec.encode(change.state), EngineState))


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
        wait_until(lambda: session.connection.state is ConnectionState.SYNCING)
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        engine.send(step(3))
        wait_until(lambda: session.state.step == 3)
    with HandDrivenEngine(endpoint, incarnation="two") as engine:
        engine.await_viewer()
        engine.send(engine_info(incarnation="two"))
        engine.answer()
        wait_until(lambda: session.state.info and session.state.info.incarnation == "two")
        wait_until(lambda: session.connection.state is ConnectionState.LIVE)
        engine.send(arrival(9))
        wait_until(lambda: "req-9" in session.state.requests)


def assert_contains(timeline: Timeline, states: list[EngineState]) -> None:
    """Every state can be read, across a gap and a restart."""
    assert timeline.last + 1 == len(states)
    for position, state in enumerate(states):
        assert timeline.at(position) == state
    assert [(gap.restarted, gap.num_missed) for gap in timeline.gaps] == [(False, 3), (True, 1)]


def test_session_is_recorded_across_a_gap_and_a_restart(endpoint: str, tmp_path: Path) -> None:
    copier, path = StateCopier(), tmp_path / "run.seqtop"
    recorder = Recorder(FileWriter(path))
    session = Session(endpoint)
    session.add_listener(copier.note)
    session.add_listener(recorder.record)
    try:
        live_through_a_gap_and_a_restart(endpoint, session)
    finally:
        session.close()
        recorder.close()
    assert recorder.error is None
    assert_contains(session.history, copier.states)
    with FileStore(path) as recording:
        assert recording.damage is None
        assert_contains(recording, copier.states)
        requests = [list(recording.at(position).requests) for position in (3, 4, 7)]
        assert requests == [["req-1"], ["req-1", "req-2", "req-3", "req-4"], ["req-9"]]
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
        session.add_listener(recorder.record)
        engine.send(arrival(2))
        wait_until(lambda: recorder.num_messages == 1)
        session.remove_listener(recorder.record)
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
    recorder.record(StateChange(state, None, incarnation="one"))
    event = arrival(1)
    state.apply(event)
    recorder.record(StateChange(state, [1], event, codec.encode(event), 0))
    wait_until(lambda: list(final_state(path).requests) == ["req-1"])
    recorder.close()


def test_disk_that_fails_ends_the_recording_and_not_the_session(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(FileWriter(tmp_path / "run.seqtop"))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        session.add_listener(recorder.record)
        monkeypatch.setattr("seqtop.history.file_writer.os.write", full)
        engine.await_viewer()
        engine.answer()
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        engine.send(arrival(1))
        wait_until(lambda: "req-1" in session.state.requests)
        assert "No space left on device" in (recorder.error or "")
    recorder.close()
    assert recorder.num_messages == 0
