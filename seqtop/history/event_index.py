"""The index of a timeline: the time, the step and the kind of each entry.

An entry is an event that was applied to the state, or a snapshot that replaced the state. Its
position is its number, counted from 1; position 0 is the state before the first entry. Searches
are bisections and decode no event.
"""

import enum
import math
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from seqtop.wire.batch import block_moves
from seqtop.wire.messages import Event, RequestFinished, Step


class EventKind(enum.IntFlag):
    """The kinds of entries that a user can jump to."""

    FINISH = 1
    """A request finished."""
    PREEMPTION = 2
    SWAP = 4
    """Blocks were swapped out to host memory or swapped in."""
    RESYNC = 8
    """A snapshot replaced the state; the events that led to it are not recorded."""
    RESTART = 16
    """Together with `RESYNC`: the engine was restarted; steps and numbers start again."""


ORDINARY: Final = EventKind(0)


def kind_of(event: Event) -> EventKind:
    """Returns the kind of the entry that `event` makes."""
    if isinstance(event, RequestFinished):
        return EventKind.FINISH
    if not isinstance(event, Step):
        return ORDINARY
    kind = EventKind.PREEMPTION if event.preemptions else ORDINARY
    moves = block_moves(event)
    if (
        moves.swapped_in
        or moves.swapped_out
        or any(preemption.mode == "swap" for preemption in event.preemptions)
    ):
        kind |= EventKind.SWAP
    return kind


class IndexEntry(NamedTuple):
    """One entry of the index."""

    number: int
    """Sequence number of the message."""
    time: float
    """The engine's clock after the entry, in epoch seconds; never decreases."""
    step: int
    """The last step after the entry; -1 before the first step."""
    kind: EventKind


_EMPTY: Final = IndexEntry(-1, 0.0, -1, ORDINARY)


class EventIndex:
    """The entries from position `first` to `last`; safe to use from several threads.

    Methods expect and return positions in that range.
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
        """The earliest position."""
        return self._first

    @property
    def last(self) -> int:
        """The newest position."""
        with self._lock:
            return self._first + max(len(self._numbers) - 1, 0)

    def __getitem__(self, position: int) -> IndexEntry:
        with self._lock:
            if not self._numbers:
                return _EMPTY
            index = position - self._first
            if index < 0:
                raise IndexError(f"position {position} is no longer recorded")
            return IndexEntry(
                self._numbers[index], self._times[index], self._steps[index],
                EventKind(self._kinds[index]),
            )  # fmt: skip

    def append(self, number: int, time: float, step: int, kind: EventKind) -> None:
        """Adds the next entry.

        A time, step or number that would run backwards is replaced by the one before it, because
        a bisection needs sorted arrays.
        """
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
                for flag in kind:
                    self._positions[flag].append(position)

    def drop_before(self, position: int) -> None:
        """Deletes all entries before `position`."""
        with self._lock:
            count = position - self._first
            for numbers in (self._numbers, self._times, self._steps, self._kinds):
                del numbers[:count]
            for positions in self._positions.values():
                del positions[: bisect_left(positions, position)]
            # The event at the first position can no longer be read: it is not a recorded step.
            del self._step_positions[: bisect_right(self._step_positions, position)]
            self._first = position

    @property
    def num_steps(self) -> int:
        """Number of recorded steps, over all restarts of the engine."""
        return len(self._step_positions)

    def steps(self, start: int, stop: int) -> list[int]:
        """Returns the positions of the recorded steps from index `start` to before `stop`."""
        with self._lock:
            return self._step_positions[max(start, 0) : max(stop, 0)].tolist()

    def num_steps_until(self, position: int) -> int:
        """Returns the number of recorded steps up to `position`, inclusive."""
        with self._lock:
            return bisect_right(self._step_positions, position)

    def at_time(self, time: float) -> int:
        """Returns the last position that is not after `time` (epoch seconds)."""
        with self._lock:
            return self._last_not_above(self._times, time, 0, len(self._times))

    def at_step(self, step: int, *, near: int | None = None) -> int:
        """Returns the last position before step `step + 1`.

        Args:
            step: A step number.
            near: A position in the run of the engine that is meant; steps start again after a
                restart. By default the newest run.
        """
        with self._lock:
            return self._last_not_above(self._steps, step, *self._run_bounds(near))

    def next(self, kind: EventKind, position: int) -> int | None:
        """Returns the first position after `position` that has any of the kinds in `kind`."""
        with self._lock:
            candidates = (
                positions[index]
                for positions in (self._positions[flag] for flag in kind)
                if (index := bisect_right(positions, position)) < len(positions)
            )
            return min(candidates, default=None)

    def previous(self, kind: EventKind, position: int) -> int | None:
        """Returns the last position before `position` that has any of the kinds in `kind`."""
        with self._lock:
            candidates = (
                positions[index - 1]
                for positions in (self._positions[flag] for flag in kind)
                if (index := bisect_left(positions, position)) > 0
            )
            return max(candidates, default=None)

    def next_step(self, position: int) -> int | None:
        """Returns the last position of the next step, or `None` at the end."""
        with self._lock:
            start, stop = self._run_bounds(position)
            step = self[position].step
            index = bisect_right(self._steps, step, start, stop)
            if index == len(self._steps):
                return None
            start, stop = self._run_bounds(self._first + index)
            return self._last_not_above(self._steps, self._steps[index], start, stop)

    def previous_step(self, position: int) -> int | None:
        """Returns the last position of the previous step, or `None` at the beginning."""
        with self._lock:
            start, stop = self._run_bounds(position)
            step = self[position].step
            index = bisect_left(self._steps, step, start, stop)
            return self._first + index - 1 if index else None

    def _run_bounds(self, near: int | None) -> tuple[int, int]:
        """Returns the array indices of the run of the engine that has position `near`."""
        restarts = self._positions[EventKind.RESTART]
        run = bisect_right(restarts, self.last if near is None else near)
        start = restarts[run - 1] - self._first if run else 0
        stop = restarts[run] - self._first if run < len(restarts) else len(self._numbers)
        return start, stop

    def _last_not_above(self, numbers: Sequence[float], value: float, start: int, stop: int) -> int:
        index = bisect_right(numbers, value, start, stop) - 1
        return self._first + max(index, start)
