"""A search for the moment at which a condition begins to hold, in slices of time."""

from __future__ import annotations

import time
from collections.abc import Iterator

from seqtop.history.timeline import RecordingError, Timeline
from seqtop.state import EngineState
from seqtop.state.condition import ENGINE, Condition, ConditionTracker
from seqtop.wire.messages import Event


class ConditionSearch:
    """Searches a timeline for a position at which a condition begins to hold.

    A condition has a filter on sequences and tests on the engine. It begins to hold at the first
    position where both are true. Backwards, the first position of the history counts, if the
    condition holds there.

    Args:
        timeline: The timeline, up to its present end.
        condition: The condition; its filter is used by this search only.
        position: The position from which to search; it is no match itself.
        direction: 1 for forwards, -1 for backwards.
    """

    def __init__(
        self, timeline: Timeline, condition: Condition, position: int, direction: int
    ) -> None:
        self.condition = condition
        self.direction = direction
        self.match: int | None = None
        """The position at which the condition begins to hold; `None` if there is none."""
        self.match_seq_id: int | None = None
        """A sequence that begins to match there; `None` if it is the engine that does."""
        self.error = ""
        """One sentence if a part of the timeline could not be read."""
        self.is_done = False
        self.position = position
        """The position that the search has reached."""
        self._timeline = timeline
        self._state = EngineState()
        self._tracker = ConditionTracker(condition)
        self._events: Iterator[tuple[int, Event | None]] | None = None
        self._start = position
        self._stop = timeline.last if direction > 0 else position - 1
        self._last_match: tuple[int, int] | None = None
        """The last match in the part being read backwards: its position and its sequence."""

    def advance(self, seconds: float) -> bool:
        """Searches for about this many seconds; returns whether there is more to search."""
        deadline = time.monotonic() + seconds
        with self._timeline.lock:
            while not self.is_done:
                try:
                    self._read_next()
                except RecordingError as error:
                    self.error = f"The history cannot be read: {error}."
                    self.is_done = True
                if time.monotonic() >= deadline:
                    break
        return not self.is_done

    def _read_next(self) -> None:
        if self._events is None:
            self._open()
            return
        following = next(self._events, None)
        if following is None:
            self._end_part()
            return
        self.position, event = following
        if event is None:
            self._state = self._timeline.at(self.position)
            match = self._tracker.replace(self._state)
        else:
            match = self._tracker.update(self._state, event, self._state.apply(event))
        if match is not None:
            self._find(self.position, match)

    def _open(self) -> None:
        """Begins a part: all that is left forwards, or the events since a keyframe backwards."""
        timeline = self._timeline
        if self._stop < timeline.first:
            self.is_done = True
            return
        if self.direction < 0:
            self._start = timeline.keyframe_before(self._stop - 1)
        self._start = max(self._start, timeline.first)
        self._tracker.clear()
        self._state = timeline.at(self._start)
        seq_id = self._tracker.replace(self._state)
        if self.direction < 0 and self._start == timeline.first and seq_id is not None:
            self._find(self._start, seq_id)
        self.position = self._start
        self._events = timeline.events(self._start, self._stop)

    def _end_part(self) -> None:
        if self._last_match is not None:
            self._report(*self._last_match)
        elif self.direction > 0 or self._start <= self._timeline.first:
            self.is_done = True
        else:  # whether it begins to hold at the keyframe is known from the part before
            self._stop, self._events = self._start, None

    def _find(self, position: int, seq_id: int) -> None:
        if self.direction > 0:
            self._report(position, seq_id)
        else:
            self._last_match = position, seq_id

    def _report(self, position: int, seq_id: int) -> None:
        self.match = position
        self.match_seq_id = None if seq_id == ENGINE else seq_id
        self.is_done = True
