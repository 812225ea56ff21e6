"""A condition that is watched while the state of an engine changes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from seqtop.state.condition import Condition, ConditionTracker
from seqtop.state.listener import StateChange
from seqtop.state.model import EngineData
from seqtop.text import format as fmt

PAUSE_SECONDS = 60.0
"""Seconds from the beginning that was told to the next one that is."""


class ConditionChange(NamedTuple):
    """The beginning of the time in which a condition holds, or its end."""

    has_begun: bool
    time: float
    """Epoch seconds of the engine's clock."""
    step: int
    request_id: str | None
    """A request that matches; `None` at the end, or if the condition is on the engine alone."""
    held_seconds: float | None
    """Seconds for which it held; `None` at the beginning."""
    num_left_out: int
    """Beginnings since the last one that was told."""


class ConditionWatch:
    """Tells when a condition begins to hold, and when that ends.

    A beginning is told once a minute at most; the end follows each one that was told. The others
    are counted.

    Args:
        condition: The condition; its filter is used by this object only.
        clock: Returns the seconds since any fixed time.
    """

    def __init__(self, condition: Condition, clock: Callable[[], float] = time.monotonic) -> None:
        self.condition = condition
        self._tracker = ConditionTracker(condition)
        self._clock = clock
        self._num_begun = self._num_told = 0
        """The beginnings, and those of them that were told or counted in a later one."""
        self._begin: tuple[float, int, str | None] = (0.0, -1, None)
        self._end: tuple[float, int] = (0.0, -1)
        self._is_told = False
        """True from a beginning that was told to its end."""
        self._next = -math.inf
        """The time of the clock from which on a beginning is told."""

    @property
    def holds(self) -> bool:
        """True while the condition holds."""
        return self._tracker.holds

    def observe(self, change: StateChange) -> None:
        """Reads a change of the state. Called under the lock of its source."""
        state, tracker = change.state, self._tracker
        held = tracker.holds
        if change.event is None or change.touched is None:
            found = tracker.replace(state)
        else:
            found = tracker.update(state, change.event, change.touched)
        if tracker.holds and not held:
            self._num_begun += 1
            self._begin = state.time, state.step, _request_id(state, found)
        elif held and not tracker.holds:
            self._end = state.time, state.step

    def poll(self) -> Iterator[ConditionChange]:
        """Yields what has not been told. Called under the lock of the source."""
        holds, now = self._tracker.holds, self._clock()
        num_new = self._num_begun - self._num_told
        if not self._is_told and now >= self._next and (num_new or holds):
            self._is_told, self._next, self._num_told = True, now + PAUSE_SECONDS, self._num_begun
            since, step, request_id = self._begin
            yield ConditionChange(True, since, step, request_id, None, max(num_new - 1, 0))
        if self._is_told and not holds:
            self._is_told = False
            until, step = self._end
            seconds = max(until - self._begin[0], 0.0)
            yield ConditionChange(
                False, until, step, None, seconds, self._num_begun - self._num_told
            )

    def sentence(self, change: ConditionChange) -> str:
        """Returns a sentence on a change that `poll` has yielded."""
        source = self.condition.source
        if change.has_begun:
            who = f", by {change.request_id}" if change.request_id is not None else ""
            return f"{source} holds since step {fmt.count(change.step)}{who}"
        held = fmt.seconds(change.held_seconds)
        return f"{source} held for {held}, up to step {fmt.count(change.step)}"


def _request_id(state: EngineData, seq_id: int | None) -> str | None:
    sequence = state.sequences.get(seq_id) if seq_id is not None else None
    return None if sequence is None else sequence.request_id
