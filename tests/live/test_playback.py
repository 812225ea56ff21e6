"""The clock that plays recordings, with a time that the test sets."""

import pytest

from seqtop.history.memory_store import MemoryStore
from seqtop.live.playback import Playback
from seqtop.state import EngineState
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Heartbeat
from tests.support.recordings import append, encoded

SCRIPT = encoded(31, 150, num_blocks=24)
OTHER = encoded(32, 20, incarnation="two", start=1.8e9)


class Clock:
    """A clock that shows `now`."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def history() -> MemoryStore:
    """A script, and a year later another start of the engine."""
    store = MemoryStore()
    append(store, SCRIPT, EngineState())
    state = EngineState()
    for payload in OTHER[:3]:
        state.apply(parsing.event(payload))
    store.restore("two", 2, state)
    append(store, OTHER, state, 3)
    return store


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_time_moves_the_position_at_the_given_speed(history: MemoryStore, clock: Clock) -> None:
    playback = Playback(history, "run.seqtop", speed=3.0, clock=clock)
    position: int | None = 1  # the first one that has a time
    start = history.index[1].time
    for now in (100.0, 100.5, 101.0, 101.5):
        clock.now = now
        assert position is not None
        position = playback.advance(position)
        assert position == history.index.at_time(start + 3.0 * (now - 100.0))


def test_the_time_before_the_first_call_is_not_played(history: MemoryStore, clock: Clock) -> None:
    playback = Playback(history, "run", clock=clock)
    for now in (1e9, 2e9):
        clock.now = now
        playback.start()
        assert playback.advance(50) == 50
    clock.now += 0.2
    assert (playback.advance(50) or 0) > 50


def test_playing_goes_on_from_where_the_user_went(history: MemoryStore, clock: Clock) -> None:
    playback = Playback(history, "run", clock=clock)
    playback.advance(100)
    clock.now = 0.5
    assert (playback.advance(100) or 0) > 100
    clock.now = 1.0
    assert playback.advance(20) == history.index.at_time(history.index[20].time + 0.5)


def test_playing_ends_at_the_end_or_starts_again(history: MemoryStore, clock: Clock) -> None:
    for loops in (False, True):
        playback = Playback(history, "run", loop=loops, clock=clock)
        playback.advance(history.last - 1)
        clock.now += 1e6
        assert playback.advance(history.last - 1) == history.last
        assert playback.advance(history.last) == (history.first if loops else None)


def test_gap_is_crossed_at_once(history: MemoryStore, clock: Clock) -> None:
    (gap,) = history.gaps
    playback = Playback(history, "run", clock=clock)
    playback.advance(gap.position - 1)
    clock.now = 0.01
    assert gap.position <= (playback.advance(gap.position - 1) or 0) < history.last


def test_long_pause_is_crossed_at_once(clock: Clock) -> None:
    history = MemoryStore()
    beats = [Heartbeat(time=time, step=0) for time in (1e9, 1e9 + 4.0, 1e9 + 60.0, 1e9 + 61.0)]
    append(history, [codec.encode(beat) for beat in beats], EngineState())
    playback = Playback(history, "run", clock=clock)
    seen = [0]
    for now in range(8):
        clock.now = float(now)
        seen.append(playback.advance(seen[-1]) or 0)
    assert seen[1:] == [0, 1, 1, 1, 1, 2, 3, 4]


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_speed_must_be_positive(history: MemoryStore, speed: float) -> None:
    with pytest.raises(ValueError, match="speed must be a positive number"):
        Playback(history, "run", speed=speed)
