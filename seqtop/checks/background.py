"""Holds what is on record to the rules of `seqtop.checks`, a stretch at a time.

It reads the record rather than the stream, so it can begin at any time, slows nobody down who
takes events in, and says of each finding where on the record it is.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from seqtop.checks import Checker, Finding
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.observable import Observable
from seqtop.wire.messages import Event

MOST_FINDINGS = 500
"""Findings of one rule that are kept, the newest; all are counted."""


class LocatedFinding(NamedTuple):
    """A finding and where it is on record."""

    number: int
    """Counts up with each; those that are kept are in this order."""
    position: int
    """The moment that shows it. Never less than that of the one before."""
    finding: Finding


class BackgroundChecker(Observable):
    """Checks `timeline` from its beginning to its end, and on as it grows.

    It changes whenever something has been checked.

    One thread calls `advance`; any may look.
    """

    def __init__(self, timeline: Timeline) -> None:
        super().__init__()
        self.num_steps = 0
        """Steps checked so far."""
        self.num_gaps = 0
        """Holes in what was seen, or could be read; checking began anew after each."""
        self.num_findings = 0
        self._timeline = timeline
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._found: list[LocatedFinding] = []
        self._checker: Checker | None = None
        self._position = 0
        self._events: Iterator[tuple[int, Event | None]] = iter(())

    @property
    def step(self) -> int:
        """The last step that has been checked; -1 before the first."""
        return -1 if self._checker is None else self._checker.state.step

    @property
    def is_behind(self) -> bool:
        """Whether there is something on record that has not been checked."""
        return self._checker is None or self._position < self._timeline.last

    def found(self) -> list[LocatedFinding]:
        """The findings that are kept, oldest first."""
        with self._lock:
            return list(self._found)

    def counts(self) -> dict[str, int]:
        """For each rule that was broken how often it was, the most often broken first."""
        with self._lock:
            return dict(self._counts.most_common())

    def next(self, position: int) -> list[LocatedFinding]:
        """What was found at the first moment after `position` that shows anything."""
        with self._lock:
            index = bisect_right(self._found, position, key=attrgetter("position"))
            return self._together(index)

    def previous(self, position: int) -> list[LocatedFinding]:
        """What was found at the last moment before `position` that shows anything."""
        with self._lock:
            index = bisect_left(self._found, position, key=attrgetter("position")) - 1
            return self._together(index) if index >= 0 else []

    def advance(self, seconds: float) -> bool:
        """Check on for about so many seconds; returns whether there is more to check."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if self._checker is None:
                    self._begin(self._position)
                taken = next(self._events, None)
            except RecordingError:
                self._skip()
                continue
            if taken is not None and taken[0] != self._position + 1:
                self._skip()  # what lies between has been dropped
            elif taken is not None:
                self._check(*taken)
            elif self._position < self._timeline.last:
                self._events = self._timeline.events(self._position, self._timeline.last)
            else:
                return False
        return True

    def _begin(self, position: int) -> None:
        with self._timeline.lock:  # lest it be dropped before it is read
            self._position = max(position, self._timeline.first)
            self._checker = Checker(self._timeline.at(self._position))
        self._events = iter(())

    def _check(self, position: int, event: Event | None) -> None:
        if event is None:  # the state was taken anew
            self.num_gaps += 1
            self._begin(position)
            self.changed()
            return
        assert self._checker is not None
        state = self._checker.state
        num_steps = state.num_steps_seen
        for finding in self._checker.apply(event):
            # What is wrong with the pool shows only when the next step comes.
            self._keep(position if finding.step == state.step else position - 1, finding)
        self.num_steps += state.num_steps_seen - num_steps
        self._position = position
        self.changed()

    def _keep(self, position: int, finding: Finding) -> None:
        with self._lock:
            if self._found:
                position = max(position, self._found[-1].position)
            self.num_findings += 1
            self._counts[finding.rule] += 1
            self._found.append(LocatedFinding(self.num_findings, position, finding))
            if self._counts[finding.rule] > MOST_FINDINGS:
                same = (each.finding.rule == finding.rule for each in self._found)
                del self._found[next(index for index, is_same in enumerate(same) if is_same)]

    def _skip(self) -> None:
        """Go on after a stretch that cannot be read, or has been dropped meanwhile."""
        self.num_gaps += 1
        self.changed()
        self._checker = None
        self._events = iter(())
        if self._position >= self._timeline.first:
            beyond = self._timeline.keyframe_after(self._position)
            self._position = self._timeline.last if beyond is None else beyond

    def _together(self, index: int) -> list[LocatedFinding]:
        """All that was found at the moment of the one at `index`, if there is one."""
        if index >= len(self._found):
            return []
        position = self._found[index].position
        key = attrgetter("position")
        start = bisect_left(self._found, position, key=key)
        return self._found[start : bisect_right(self._found, position, key=key)]
