"""The index of a timeline: when each moment was, and which ones are worth stopping at.

A moment is an event that was applied, or a snapshot that replaced the state. Moments are numbered
from 1; position 0 is what there was before the first. Finding one is a bisection, and none needs
an event to be decoded.
"""

import enum
import math
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from seqtop.wire.messages import Event, RequestFinished, Step


class EventKind(enum.IntFlag):
    """What happened at a moment, of the things one looks for."""

    FINISH = 1
    """A request ended."""
    PREEMPTION = 2
    SWAP = 4
    """Blocks went to host memory or came back."""
    RESYNC = 8
    """The state was taken anew from a snapshot; what led to it is not on record."""
    RESTART = 16
    """With `RESYNC`: the engine had been started anew. Steps and numbers begin again here."""


ORDINARY: Final = EventKind(0)


def kind_of(event: Event) -> EventKind:
    """What kind of moment an applied event makes."""
    if isinstance(event, RequestFinished):
        return EventKind.FINISH
    if not isinstance(event, Step):
        return ORDINARY
    kind = EventKind.PREEMPTION if event.preemptions else ORDINARY
    execute = event.execute
    if (
        execute.blocks_to_swap_in
        or execute.blocks_to_swap_out
        or any(preemption.mode == "swap" for preemption in event.preemptions)
    ):
        kind |= EventKind.SWAP
    return kind


class IndexEntry(NamedTuple):
    """One moment: the message's number, and the engine's clock and step right after it."""

    number: int
    time: float
    """Epoch seconds; never less than at the moment before."""
    step: int
    kind: EventKind


_NOTHING: Final = IndexEntry(-1, 0.0, -1, ORDINARY)


class EventIndex:
    """The moments from position `first` to `last`; safe to use from several threads.

    Every method that takes a position takes one in that range and returns one in it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._first = 0
        self._numbers = array("q")
        self._times = array("d")
        self._steps = array("q")
        self._kinds = array("B")
        self._positions = {kind: array("q") for kind in EventKind}
        self._step_positions = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def first(self) -> int:
        return self._first

    @property
    def last(self) -> int:
        with self._lock:
            return self._first + max(len(self._numbers) - 1, 0)

    def __getitem__(self, position: int) -> IndexEntry:
        with self._lock:
            if not self._numbers:
                return _NOTHING
            index = position - self._first
            if index < 0:
                raise IndexError(f"position {position} is no longer on record")
            return IndexEntry(
                self._numbers[index], self._times[index], self._steps[index],
                EventKind(self._kinds[index]),
            )  # fmt: skip

    def append(self, number: int, time: float, step: int, kind: EventKind) -> None:
        """Note the next moment. What would run backwards is held still, so bisection works."""
        with self._lock:
            if self._numbers:
                if not (math.isfinite(time) and time > self._times[-1]):
                    time = self._times[-1]
                if not (kind and kind & EventKind.RESTART):
                    step = max(step, self._steps[-1])
                    number = max(number, self._numbers[-1])
            elif not math.isfinite(time):
                time = 0.0
            position = self._first + len(self._numbers)
            if self._numbers and not (kind and kind & EventKind.RESYNC) and step > self._steps[-1]:
                self._step_positions.append(position)
            self._numbers.append(number)
            self._times.append(time)
            self._steps.append(step)
            self._kinds.append(kind)
            if kind:
                for each in kind:
                    self._positions[each].append(position)

    def drop_before(self, position: int) -> None:
        """Forget what came before `position`."""
        with self._lock:
            count = position - self._first
            for column in (self._numbers, self._times, self._steps, self._kinds):
                del column[:count]
            for positions in self._positions.values():
                del positions[: bisect_left(positions, position)]
            # What led to the first moment cannot be read any more: no step is on record there.
            del self._step_positions[: bisect_right(self._step_positions, position)]
            self._first = position

    @property
    def num_steps(self) -> int:
        """How many steps are on record, of all starts of the engine."""
        return len(self._step_positions)

    def steps(self, start: int, stop: int) -> list[int]:
        """The positions of the steps on record from the `start`th to before the `stop`th."""
        with self._lock:
            return self._step_positions[max(start, 0) : max(stop, 0)].tolist()

    def num_steps_until(self, position: int) -> int:
        """How many of the steps on record are not after `position`."""
        with self._lock:
            return bisect_right(self._step_positions, position)

    def at_time(self, time: float) -> int:
        """The last moment not after `time` (epoch seconds)."""
        with self._lock:
            return self._last_not_above(self._times, time, 0, len(self._times))

    def at_step(self, step: int, *, near: int | None = None) -> int:
        """The last moment before step `step + 1` began, of the engine's start that ran at `near`.

        `near` is a position; the default is the newest.
        """
        with self._lock:
            return self._last_not_above(self._steps, step, *self._incarnation(near))

    def next(self, kind: EventKind, position: int) -> int | None:
        """The first moment after `position` that is of `kind` (of any, if it is several)."""
        with self._lock:
            found = (
                places[index]
                for places in (self._positions[each] for each in kind)
                if (index := bisect_right(places, position)) < len(places)
            )
            return min(found, default=None)

    def previous(self, kind: EventKind, position: int) -> int | None:
        """The last moment before `position` that is of `kind` (of any, if it is several)."""
        with self._lock:
            found = (
                places[index - 1]
                for places in (self._positions[each] for each in kind)
                if (index := bisect_left(places, position)) > 0
            )
            return max(found, default=None)

    def next_step(self, position: int) -> int | None:
        """The last moment of the step after the one at `position`; `None` at the end."""
        with self._lock:
            start, stop = self._incarnation(position)
            step = self[position].step
            index = bisect_right(self._steps, step, start, stop)
            if index == len(self._steps):
                return None
            start, stop = self._incarnation(self._first + index)
            return self._last_not_above(self._steps, self._steps[index], start, stop)

    def previous_step(self, position: int) -> int | None:
        """The last moment of the step before the one at `position`; `None` at the beginning."""
        with self._lock:
            start, stop = self._incarnation(position)
            step = self[position].step
            index = bisect_left(self._steps, step, start, stop)
            return self._first + index - 1 if index else None

    def _incarnation(self, near: int | None) -> tuple[int, int]:
        """The range of indices that belong to the same start of the engine as `near` does."""
        restarts = self._positions[EventKind.RESTART]
        place = bisect_right(restarts, self.last if near is None else near)
        start = restarts[place - 1] - self._first if place else 0
        stop = restarts[place] - self._first if place < len(restarts) else len(self._numbers)
        return start, stop

    def _last_not_above(self, column: Sequence[float], value: float, start: int, stop: int) -> int:
        index = bisect_right(column, value, start, stop) - 1
        return self._first + max(index, start)
