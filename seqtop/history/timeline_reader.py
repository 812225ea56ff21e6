"""Reads a timeline in slices of time, so that it can be read in the background.

The timeline is read instead of the live stream. So reading can start at any time, does not slow
down the thread that receives, and gives what is found its position on the timeline.
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from seqtop.history.timeline import RecordingError, Timeline
from seqtop.state import EngineState
from seqtop.text import format as fmt
from seqtop.wire.messages import Event

_SLICE_SECONDS = 0.01
"""Seconds for which it reads without a pause."""
_PAUSE = 2.0
"""The length of a pause in multiples of the time before it: other threads need the interpreter."""
_IDLE_SECONDS = 0.1
"""Seconds of a pause after everything has been read."""
_MAX_FAULT = 200
"""Characters of the description of a fault."""


class TimelineReader(ABC):
    """Reads `timeline` from its beginning to its end, and further as it grows.

    One thread calls `advance`.

    Args:
        timeline: The timeline.
        max_position: The last position to read; by default all that there are.
    """

    def __init__(self, timeline: Timeline, *, max_position: float = math.inf) -> None:
        self.errors: list[str] = []
        """A sentence for each part that could not be read."""
        self.failure = ""
        """The fault of this reader after which it reads no more; empty without one."""
        self._timeline = timeline
        self._max_position = max_position
        self._position = 0
        """The position of the last event that was read."""
        self._unreadable_end = -1
        """The end of the timeline when its last part could not be read; -1 otherwise."""
        self._events: Iterator[tuple[int, Event | None]] = iter(())

    @property
    @abstractmethod
    def has_started(self) -> bool:
        """True if there is a state to apply events to; false at first and in a gap."""

    @abstractmethod
    def start(self, position: int, state: EngineState) -> None:
        """Starts from a state at a position, which `apply` may change."""

    @abstractmethod
    def stop(self) -> None:
        """Stops at a gap, until the next `start`."""

    @abstractmethod
    def apply(self, position: int, event: Event) -> None:
        """Reads the next event."""

    @property
    def is_behind(self) -> bool:
        """True if there are events on the timeline that are still to be read."""
        if self.failure:
            return False
        if not self.has_started:
            return self._timeline.last > self._unreadable_end
        return self._position < min(self._timeline.last, self._max_position)

    @property
    def problem(self) -> str:
        """The end of reading by a fault, or the number of unreadable parts; empty without any."""
        if self.failure:
            return f"stopped by a fault: {self.failure}"
        return fmt.plural(len(self.errors), "unreadable part") if self.errors else ""

    def advance(self, seconds: float) -> bool:
        """Reads for about this many seconds; returns whether there is more to read."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.is_behind:
                return False
            try:
                if not self.has_started:
                    self._start_at(self._position)
                self._read_next()
            except RecordingError as error:
                self.errors.append(str(error))
                self._skip()
        return True

    def _start_at(self, position: int) -> None:
        with self._timeline.lock:  # so that the position cannot be dropped before it is read
            self._position = max(position, self._timeline.first)
            self.start(self._position, self._timeline.at(self._position))
        self._events = iter(())

    def _read_next(self) -> None:
        following = next(self._events, None)
        if following is None:
            self._events = self._timeline.events(self._position, self._timeline.last)
            return
        position, event = following
        if position != self._position + 1:
            self._skip()  # the events between have been dropped
        elif event is None:  # a snapshot
            self._start_at(position)
        else:
            self.apply(position, event)
            self._position = position

    def _skip(self) -> None:
        """Continues after a part that cannot be read or has been dropped."""
        self.stop()
        self._events = iter(())
        if self._position >= self._timeline.first:
            beyond = self._timeline.keyframe_after(self._position)
            if beyond is None:
                self._unreadable_end = self._timeline.last
            self._position = self._timeline.last if beyond is None else beyond


class ReaderThread:
    """A thread that advances a reader for a third of the time, from `start` to `close`.

    A fault of the reader ends it, as the reader's `failure`.

    Args:
        reader: The reader.
        on_progress: Called on the thread after more has been read.
    """

    def __init__(self, reader: TimelineReader, on_progress: Callable[[], object]) -> None:
        self._reader = reader
        self._on_progress = on_progress
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seqtop-reader", daemon=True)

    @property
    def is_running(self) -> bool:
        """True if the thread has started and has not ended."""
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
            begun, was_behind = time.monotonic(), self._reader.is_behind
            try:
                is_behind = self._reader.advance(_SLICE_SECONDS)
            except Exception as error:  # noqa: BLE001 (the thread would end in silence)
                self._reader.failure = f"{type(error).__name__}: {error}"[:_MAX_FAULT]
                self._on_progress()
                return
            if was_behind:
                self._on_progress()
            pause = _PAUSE * (time.monotonic() - begun) if is_behind else _IDLE_SECONDS
