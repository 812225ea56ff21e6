"""Searches in the index against a look at every event."""

import math
import random
from collections.abc import Iterator

import pytest

from seqtop.history.event_index import ORDINARY, EventIndex, EventKind, kind_of
from seqtop.history.memory_store import MemoryStore
from seqtop.wire.messages import Event, RequestFinished, Step
from tests.support.events import arrival, preemption, step


def scan(history: MemoryStore) -> Iterator[tuple[int, EventKind]]:
    """Yields each position and the kind of its event."""
    for position, event in history.events(0, history.last):
        kind = EventKind(0)
        if isinstance(event, RequestFinished):
            kind |= EventKind.FINISH
        if isinstance(event, Step) and event.preemptions:
            kind |= EventKind.PREEMPTION
        if isinstance(event, Step) and (
            event.execute.blocks_to_swap_in or event.execute.blocks_to_swap_out
        ):
            kind |= EventKind.SWAP
        yield position, kind


@pytest.mark.parametrize(
    "kind",
    [
        EventKind.FINISH,
        EventKind.PREEMPTION,
        EventKind.SWAP,
        EventKind.PREEMPTION | EventKind.FINISH,
    ],
)
def test_next_and_previous_of_a_kind(long: MemoryStore, kind: EventKind) -> None:
    positions = [position for position, of_event in scan(long) if of_event & kind]
    assert len(positions) > 20
    for position in range(0, long.last + 1, 7):
        after = [later for later in positions if later > position]
        before = [earlier for earlier in positions if earlier < position]
        assert long.index.next(kind, position) == (after[0] if after else None)
        assert long.index.previous(kind, position) == (before[-1] if before else None)


def test_position_at_a_time(long: MemoryStore) -> None:
    times = [long.index[position].time for position in range(long.last + 1)]
    assert times == sorted(times)
    draw = random.Random(5)
    for _ in range(100):
        time = draw.uniform(times[1] - 1, times[-1] + 1)
        wanted = max((p for p, at in enumerate(times) if at <= time), default=0)
        assert long.index.at_time(time) == wanted


def test_walking_by_steps_visits_the_end_of_each_step_once(long: MemoryStore) -> None:
    ends: dict[int, int] = {}
    for position, event in long.events(0, long.last):
        ends[event.step if isinstance(event, Step) else max(ends, default=-1)] = position
    position, forward = long.first, []
    while (following := long.index.next_step(position)) is not None:
        position = following
        forward.append(position)
    assert forward == [position for step, position in ends.items() if step >= 0]
    backward = [position]
    while (following := long.index.previous_step(position)) is not None:
        position = following
        backward.append(position)
    assert backward[::-1] == list(ends.values())


def test_runs_of_the_engine_are_searched_apart() -> None:
    index = EventIndex()
    for number in range(5):
        index.append(number, 10.0 + number, number, EventKind(0))
    index.append(2, 5.0, 1, EventKind.RESYNC | EventKind.RESTART)
    index.append(3, 16.0, 2, EventKind(0))
    assert index[5] == (2, 14.0, 1, EventKind.RESYNC | EventKind.RESTART)
    assert index.at_step(2) == 6
    assert index.at_step(0) == 5  # the nearest of this start
    assert index.at_step(2, near=3) == 2
    assert index.at_step(99, near=0) == 4
    assert index.next_step(4) == 5
    assert index.steps(0, 9) == [1, 2, 3, 4, 6]
    index.drop_before(3)
    assert index.steps(0, 9) == [4, 6], "the event at the first position cannot be read"
    index.drop_before(5)
    assert (index.first, index.last, len(index)) == (5, 6, 2)
    assert index.at_step(2) == 6
    assert index.previous_step(5) is None


def test_each_of_three_runs_is_searched_apart() -> None:
    index, restart = EventIndex(), EventKind.RESYNC | EventKind.RESTART
    for number in range(6):
        kind = restart if number in (2, 4) else ORDINARY
        index.append(number % 2, 10.0 + number, number % 2, kind)
    assert [index.at_step(0, near=near) for near in range(6)] == [0, 0, 2, 2, 4, 4]
    assert [index.at_step(9, near=near) for near in range(6)] == [1, 1, 3, 3, 5, 5]
    assert [index.next_step(near) for near in range(6)] == [1, 2, 3, 4, 5, None]


def test_times_that_no_clock_measures_are_those_before() -> None:
    index = EventIndex()
    for number, time in enumerate((math.nan, math.inf, 5.0, -math.inf, 4.0, 6.0)):
        index.append(number, time, 0, ORDINARY)
    assert [index[position].time for position in range(6)] == [0.0, 0.0, 5.0, 5.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (step(1), ORDINARY),
        (arrival(1), ORDINARY),
        (step(1, preemptions=[preemption("a")]), EventKind.PREEMPTION),
        (
            step(1, preemptions=[preemption("a"), preemption("b", mode="swap")]),
            EventKind.PREEMPTION | EventKind.SWAP,
        ),
    ],
)
def test_the_kind_of_an_event(event: Event, kind: EventKind) -> None:
    assert kind_of(event) == kind
