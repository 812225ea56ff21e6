"""Checks of a timeline, in slices of time, so that they can run in the background.

Reading the timeline instead of the stream allows checking to start at any time, does not slow down
the thread that receives, and gives each finding its position on the timeline.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from seqtop.checks.stream_checker import LocatedFinding, Stored, StreamChecker
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.observable import Observable
from seqtop.wire.messages import Event

__all__ = ["BackgroundChecker", "CheckThread", "LocatedFinding"]

_SLICE_SECONDS = 0.01
"""Seconds for which it checks without a pause."""
_PAUSE = 2.0
"""The length of a pause in multiples of the time before it: other threads need the interpreter."""
_IDLE_SECONDS = 0.1
"""Seconds of a pause after everything has been checked."""


class BackgroundChecker(Observable):
    """Checks `timeline` from its beginning to its end, and further as it grows.

    Observers are notified whenever something has been checked. One thread calls `advance`; any
    thread may read the findings.

    Args:
        timeline: The timeline to check.
        stored: The findings of a rule to store where there are too many, as in `StreamChecker`.
    """

    def __init__(self, timeline: Timeline, *, stored: Stored = "newest") -> None:
        super().__init__()
        self.stream = StreamChecker(stored=stored)
        """The checks so far, and their findings."""
        self.errors: list[str] = []
        """A sentence for each stretch that could not be read."""
        self._timeline = timeline
        self._position = 0
        self._unreadable_end = -1
        """The end of the timeline, where it is known that nothing more can be read up to there."""
        self._events: Iterator[tuple[int, Event | None]] = iter(())

    @property
    def is_behind(self) -> bool:
        """Whether there is something on the timeline that has not been checked."""
        if not self.stream.has_started:
            return self._timeline.last > self._unreadable_end
        return self._position < self._timeline.last

    @property
    def step(self) -> int:
        """The last step that has been checked; -1 before the first."""
        return self.stream.step

    @property
    def num_steps(self) -> int:
        """Steps checked so far."""
        return self.stream.num_steps

    @property
    def num_gaps(self) -> int:
        """Gaps in the timeline, and stretches that could not be read."""
        return self.stream.num_gaps

    @property
    def num_findings(self) -> int:
        """Findings so far, stored or not."""
        return self.stream.num_findings

    def found(self) -> list[LocatedFinding]:
        """The stored findings, oldest first."""
        return self.stream.found()

    def counts(self) -> dict[str, int]:
        """The number of findings of each rule that has any, the largest first."""
        return self.stream.counts()

    def next(self, position: int) -> list[LocatedFinding]:
        """The findings at the first position with any after `position`."""
        return self.stream.next(position)

    def previous(self, position: int) -> list[LocatedFinding]:
        """The findings at the last position with any before `position`."""
        return self.stream.previous(position)

    def advance(self, seconds: float) -> bool:
        """Checks for about this many seconds; returns whether there is more to check."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.is_behind:
                return False
            try:
                if not self.stream.has_started:
                    self._start(self._position)
                self._check_next()
            except RecordingError as error:
                self.errors.append(str(error))
                self._skip()
        return True

    def _start(self, position: int) -> None:
        with self._timeline.lock:  # so that the position cannot be dropped before it is read
            self._position = max(position, self._timeline.first)
            self.stream.start(self._timeline.at(self._position))
        self._events = iter(())

    def _check_next(self) -> None:
        following = next(self._events, None)
        if following is None:
            self._events = self._timeline.events(self._position, self._timeline.last)
            return
        position, event = following
        if position != self._position + 1:
            self._skip()  # the events between have been dropped
        elif event is None:  # a snapshot
            self._start(position)
        else:
            self.stream.apply(position, event)
            self._position = position
        self.changed()

    def _skip(self) -> None:
        """Continues after a stretch that cannot be read or has been dropped."""
        self.stream.stop()
        self._events = iter(())
        if self._position >= self._timeline.first:
            beyond = self._timeline.keyframe_after(self._position)
            if beyond is None:
                self._unreadable_end = self._timeline.last
            self._position = self._timeline.last if beyond is None else beyond
        self.changed()


class CheckThread:
    """A thread that advances a checker for a third of the time, from `start` to `close`."""

    def __init__(self, checker: BackgroundChecker) -> None:
        self._checker = checker
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seqtop-check", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether the thread has started and has not ended."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and waits for it."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._closing.wait(pause):
            begun = time.monotonic()
            is_behind = self._checker.advance(_SLICE_SECONDS)
            pause = _PAUSE * (time.monotonic() - begun) if is_behind else _IDLE_SECONDS
