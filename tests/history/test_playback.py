"""Playback of timelines, with a clock that the test sets."""

import threading
from pathlib import Path

import pytest

from seqtop.history import FileStore, FileWriter, RecordingError
from seqtop.history.event_index import EventKind
from seqtop.history.file_format import KeyframeHeader
from seqtop.history.memory_store import MemoryStore
from seqtop.history.playback import Playback
from seqtop.live.connection import ConnectionState, ControlError
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Heartbeat, RequestFinished
from tests.support.recordings import append, encoded, frames_of
from tests.support.waiting import wait_until

SCRIPT = encoded(31, 150, num_blocks=24)
OTHER = encoded(32, 20, incarnation="two", start=1.8e9)


@pytest.fixture(scope="module")
def history() -> MemoryStore:
    """A script, and a year later another start of the engine."""
    found = MemoryStore()
    append(found, SCRIPT, EngineState())
    state = EngineState()
    for payload in OTHER[:3]:
        state.apply(parsing.event(payload))
    found.restore("two", 2, state)
    append(found, OTHER, state, 3)
    return found


@pytest.fixture
def source(history: MemoryStore) -> Playback:
    return Playback(history, "run.seqtop")


def test_time_moves_the_position_at_the_given_speed(history: MemoryStore, source: Playback) -> None:
    start = history.index[0].time
    source.move(1)  # the first moment that has a time
    start = source.entry.time
    for now in (100.0, 100.5, 101.0, 101.5):
        source.tick(now)
        wanted = history.index.at_time(start + now - 100.0)
        assert source.position == wanted
        assert source.state == history.at(wanted)
    source.speed = 3.0
    source.tick(102.0)
    assert source.position == history.index.at_time(start + 1.5 + 1.5)


def test_first_tick_only_sets_the_clock(source: Playback) -> None:
    source.tick(1e9)
    assert source.position == 0


def test_pausing_and_playing_keep_the_position(source: Playback) -> None:
    source.move(50)
    source.tick(10.0)
    source.pause()
    assert source.paused
    source.tick(20.0)
    assert source.position == 50
    source.play()
    source.tick(30.0)
    assert source.position == 50
    source.tick(30.2)
    assert source.position > 50


def test_playback_pauses_at_the_end_or_starts_again(history: MemoryStore) -> None:
    source = Playback(history, "run", position=history.last - 1)
    source.tick(0.0)
    source.tick(1e6)
    assert source.at_end
    assert not source.paused
    source.tick(1e6 + 1)
    assert source.paused
    source.play()
    assert source.position == history.first
    looping = Playback(history, "run", position=history.last, loop=True)
    looping.tick(0.0)
    looping.tick(1.0)
    assert looping.position == history.first
    assert not looping.paused


def test_gap_is_crossed_at_once(history: MemoryStore) -> None:
    (gap,) = history.gaps
    source = Playback(history, "run", position=gap.position - 1)
    source.tick(0.0)
    source.tick(0.01)
    assert source.position >= gap.position
    assert source.position < history.last
    assert source.state.info.incarnation == "two"


def test_long_pause_is_crossed_at_once() -> None:
    history, state = MemoryStore(), EngineState()
    beats = [Heartbeat(time=time, step=0) for time in (1e9, 1e9 + 4.0, 1e9 + 60.0, 1e9 + 61.0)]
    append(history, [codec.encode(beat) for beat in beats], state)
    source = Playback(history, "run")
    seen = []
    for now in range(8):
        source.tick(float(now))
        seen.append(source.position)
    assert seen == [0, 1, 1, 1, 1, 2, 3, 4]


def test_listeners_are_given_what_changed(history: MemoryStore, source: Playback) -> None:
    changes: list[StateChange] = []
    source.add_listener(changes.append)
    assert changes == [StateChange(source.state, None)]
    finish = history.index.next(EventKind.FINISH, 0)
    source.move(finish - 1)
    changes.clear()
    before = source.version
    source.move(finish)
    event = next(event for _, event in history.events(finish - 1, finish))
    assert isinstance(event, RequestFinished)
    (change,) = changes
    assert set(change.touched or ()) == set(source.state.requests[event.request_id].seq_ids)
    assert change.state is source.state
    assert source.version > before
    source.move(0)
    source.move(finish)
    assert changes[-2].touched is None


def test_recording_cannot_be_changed(source: Playback) -> None:
    with pytest.raises(ControlError, match="a recording cannot be changed"):
        source.submit("Hello", SamplingParams())
    with pytest.raises(ControlError, match="a recording cannot be changed"):
        source.abort("req-1")
    assert source.connection.state is ConnectionState.REPLAY
    assert source.connection.endpoint == "run.seqtop"


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_speed_must_be_positive(history: MemoryStore, source: Playback, speed: float) -> None:
    with pytest.raises(ValueError, match="speed must be a positive number"):
        Playback(history, "run", speed=speed)
    with pytest.raises(ValueError, match="speed must be a positive number"):
        source.speed = speed


def test_thread_plays_by_itself(history: MemoryStore) -> None:
    with Playback(history, "run", speed=200.0) as source:
        wait_until(lambda: source.at_end and source.paused)
        with source.lock:
            assert source.state == history.at(history.last)
        source.play()
        wait_until(lambda: source.position > 0)
    assert "seqtop-replay" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.usefixtures("short_segments")
def test_timeline_that_grows_and_drops_segments_is_followed() -> None:
    history, state = MemoryStore(max_bytes=0), EngineState()
    append(history, SCRIPT[:20], state)
    source = Playback(history, "live", position=history.last, paused=True)
    shown, mark = source.state, source.entry
    append(history, SCRIPT, state, 20)
    assert history.first > source.position
    assert source.state is shown  # the shown state is unaffected
    assert source.entry == mark
    source.move(source.position + 1)
    assert source.position == history.first
    source.move(2)
    assert source.position == history.first
    source.play()
    source.tick(0.0)
    source.tick(1e6)
    assert source.state == state
    append(history, OTHER, EngineState())
    assert not source.at_end


@pytest.fixture
def damaged(tmp_path: Path, short_segments: None) -> FileStore:
    """A recording whose first and third segments cannot be read."""
    path = tmp_path / "run.seqtop"
    with FileWriter(path) as writer:
        append(writer, SCRIPT, EngineState())
    data = bytearray(path.read_bytes())
    frames = frames_of(path)
    keyframes = [n for n, each in enumerate(frames) if isinstance(each.header, KeyframeHeader)]
    for offset in (frames[0].offset, frames[keyframes[2] + 1].offset):
        data[offset + 15] ^= 0x10
    path.write_bytes(data)
    return FileStore(path)


def test_unreadable_segments_are_skipped_with_a_message(damaged: FileStore) -> None:
    segments = [0]
    while (position := damaged.keyframe_after(segments[-1])) is not None:
        segments.append(position)
    source = Playback(damaged, "run", detail="fine so far")
    assert source.position == segments[1]
    assert "damaged at byte" in source.connection.detail
    source.move(segments[2])
    source.tick(0.0)
    source.tick(0.5)
    assert source.position >= segments[3]
    assert not source.paused
    source.tick(1e6)
    source.tick(1e6 + 1)
    assert source.at_end
    assert not source.move(segments[2] + 1)
    assert source.position == damaged.last  # the position stays readable
    with pytest.raises(RecordingError):
        damaged.at(0)
    damaged.close()


def test_empty_recording_has_nothing_to_show(tmp_path: Path) -> None:
    path = tmp_path / "run.seqtop"
    path.write_bytes(b"")
    with FileStore(path) as recording:
        source = Playback(recording, "run", detail=recording.damage or "")
        source.tick(0.0)
        source.tick(1.0)
        assert source.paused
        assert source.move(5)
        assert source.position == 0
        assert source.state == EngineState()
