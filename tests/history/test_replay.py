"""A pass over a timeline, beyond a part that cannot be read, and on a thread."""

import threading
from collections.abc import Sequence

import pytest

from seqtop.history.memory_store import MemoryStore
from seqtop.history.replay import Reader, Replay, ReplayThread
from seqtop.history.timeline import RecordingError
from seqtop.state import EngineState
from seqtop.wire.messages import Event
from tests.support.events import arrival, engine_info, step
from tests.support.random_engine import RandomEngine
from tests.support.recordings import assert_same
from tests.support.scripted import ScriptedSource
from tests.support.waiting import SECONDS


class Positions(Reader):
    """Notes the positions at which it starts, reads and stops."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, int]] = []

    def start(self, position: int, state: EngineState) -> None:
        self.noted.append(("start", position))

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        self.noted.append(("apply", position))

    def stop(self) -> None:
        self.noted.append(("stop", -1))


@pytest.fixture
def history() -> MemoryStore:
    """Four events, a snapshot at position 5, and two events."""
    source = ScriptedSource(engine_info(), arrival(1), step(0), step(1))
    source.replace(source.state)
    for number in (2, 3):
        source.apply(step(number))
    return source.history


@pytest.mark.parametrize(
    ("broken", "noted"),
    [
        (3, [("apply", 1), ("apply", 2), ("stop", -1), ("start", 5), ("apply", 6), ("apply", 7)]),
        (7, [*(("apply", n) for n in (1, 2, 3, 4)), ("start", 5), ("apply", 6), ("stop", -1)]),
    ],
)
def test_reading_goes_on_after_a_part_that_cannot_be_read(
    history: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    broken: int,
    noted: list[tuple[str, int]],
) -> None:
    read_event = history._event

    def event(position: int, payload: bytes) -> Event:
        if position == broken:
            raise RecordingError("it is broken")
        return read_event(position, payload)

    monkeypatch.setattr(history, "_event", event)
    reader = Positions()
    replay = Replay(history, [reader])
    while replay.advance(SECONDS):
        pass
    assert reader.noted == [("start", 0), *noted]
    assert (replay.errors, replay.problem) == (["it is broken"], "1 unreadable part")
    assert (replay.position, replay.share) == (7, 1.0)


def test_a_state_has_the_candidates_of_tokens_if_a_reader_needs_them() -> None:
    class LastState(Reader):
        def start(self, position: int, state: EngineState) -> None:
            self.state = state

    class Candidates(Reader):
        needs_candidates = True

    info, *events = RandomEngine(3, 60)
    source = ScriptedSource(info, *events)
    reader = LastState()
    Replay(source.history, [reader, Candidates()]).run()
    assert_same(reader.state, source.state)
    Replay(source.history, [reader]).run()
    assert any(sequence.top_logprobs for sequence in source.state.sequences.values())
    assert not any(sequence.top_logprobs for sequence in reader.state.sequences.values())
    reader.state.keeps_candidates = True
    for seq_id, sequence in source.state.sequences.items():
        reader.state.sequences[seq_id].top_logprobs = sequence.top_logprobs
    assert_same(reader.state, source.state)


def test_a_thread_reads_everything_and_says_so(history: MemoryStore) -> None:
    reader, has_read = Positions(), threading.Event()
    thread = ReplayThread(replay := Replay(history, [reader]), has_read.set)
    thread.start()
    try:
        assert has_read.wait(SECONDS)
    finally:
        thread.close()
    assert (replay.is_behind, thread.is_running, replay.failure) == (False, False, "")
    assert reader.noted[-1] == ("apply", 7)


def test_nothing_is_read_after_a_fault_of_a_reader(history: MemoryStore) -> None:
    replay = Replay(history, [])
    assert replay.is_behind
    replay.failure = "a fault"
    assert not replay.is_behind
