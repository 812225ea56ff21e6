"""The one cursor shows what the two that it replaces showed."""

import random
from typing import Any

import pytest

from seqtop.history.event_index import EventKind
from seqtop.history.memory_store import MemoryStore
from seqtop.history.playback import Playback
from seqtop.state import EngineState
from seqtop.tui import seek
from seqtop.tui.time_travel import TimeTravel
from seqtop.wire import parsing
from seqtop.wire.messages import Event
from tests.support.old_time_travel import OldPlayback, OldTimeTravel
from tests.support.recordings import encoded
from tests.support.scripted import ScriptedSource

SEEKS: list[Any] = [
    lambda rng: seek.by_steps(rng.choice([-10, -1, 1, 10])),
    lambda rng: seek.to_kind(rng.choice([*EventKind]), rng.choice([-1, 1])),
    lambda rng: seek.to_share(rng.random()),
    lambda rng: seek.by_share(rng.choice([-0.05, 0.05])),
    lambda rng: seek.to_end(rng.choice([-1, 1])),
    lambda rng: seek.to_step(rng.randrange(60)),
    lambda rng: seek.to_position(rng.randrange(400)),
]


def run(seed: int) -> list[Event | EngineState]:
    """The events of two starts of an engine, and snapshots after missed messages."""
    rng = random.Random(seed)
    first = [*map(parsing.event, encoded(seed, 40, num_blocks=24))]
    second = [*map(parsing.event, encoded(seed + 1, 20, incarnation="two", start=1.8e9))]
    items: list[Event | EngineState] = []
    for events in (first, second):
        state, missed = EngineState(), 0
        for number, event in enumerate(events):
            state.apply(event)
            if missed:
                missed -= 1
                if not missed:
                    items.append(copy(events[: number + 1]))
            elif number and rng.random() < 0.01:
                missed = rng.randrange(1, 9)
            elif number == 0 and events is second:
                items.append(copy(events[:1]))
            else:
                items.append(event)
    return items


def copy(events: list[Event]) -> EngineState:
    state = EngineState()
    for event in events:
        state.apply(event)
    return state


def feed(source: ScriptedSource, item: Event | EngineState) -> None:
    if isinstance(item, EngineState):
        source.replace(item, num_missed=3)
    else:
        source.apply(item)


def assert_same(new: TimeTravel, old: OldTimeTravel) -> None:
    assert new.position == old.position
    assert new.paused == old.paused
    assert new.key_message == old.key_message
    assert new.seek_message == old.seek_message
    assert new.state == old.state
    assert new.is_same_incarnation == old.is_same_incarnation


def act(rng: random.Random, new: TimeTravel, old: OldTimeTravel) -> None:
    new.key_message = old.key_message = ""
    if rng.random() < 0.3:
        for travel in (new, old):
            travel.resume() if travel.paused else travel.pause()
    else:
        wanted = rng.choice(SEEKS)(rng)
        assert new.go(wanted, "nothing") == old.go(wanted, "nothing")


@pytest.mark.parametrize("seed", range(60))
def test_engines(seed: int) -> None:
    rng = random.Random(seed)
    source = ScriptedSource(history=MemoryStore(max_events=rng.choice([150, 10_000])))
    new, old = TimeTravel(source), OldTimeTravel(source)
    for item in run(seed):
        feed(source, item)
        if rng.random() < 0.3:
            assert new.take_touched() == old.take_touched()
            assert_same(new, old)
        if rng.random() < 0.2:
            act(rng, new, old)
            assert new.take_touched() == old.take_touched()
            assert_same(new, old)


@pytest.mark.parametrize("seed", range(60))
def test_recordings(seed: int) -> None:
    rng = random.Random(seed)
    source = ScriptedSource()
    for item in run(seed):
        feed(source, item)
    now = 0.0
    options: dict[str, Any] = {
        "speed": rng.choice([0.5, 1.0, 30.0]),
        "loop": rng.random() < 0.5,
        "position": rng.randrange(source.history.last),
    }
    before = OldPlayback(source.history, "run", **options)
    playback = Playback(source.history, "run", clock=lambda: now, **options)
    new, old = TimeTravel(playback), OldTimeTravel(before)
    for _ in range(250):
        now += rng.choice([0.03, 0.03, 1.0])
        before.tick(now)
        new.play()
        new.take_touched()
        old.take_touched()
        assert_same(new, old)
        if rng.random() < 0.1:
            act(rng, new, old)
            if playback._position == new.position:
                before._time = playback._time  # going away and back does not repeat a pause
            new.take_touched()
            old.take_touched()
            assert_same(new, old)
