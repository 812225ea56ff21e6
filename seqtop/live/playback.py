"""Playback of a recording: its timeline, and the clock that plays it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from seqtop.history.event_index import EventKind
from seqtop.history.timeline import Timeline
from seqtop.transport.connection import Connection, ConnectionState

_LONGEST_PAUSE = 5.0
"""Longest pause in recorded seconds that is played. Engines send heartbeats, so a longer one is a
gap with nothing to show."""


class Playback:
    """A recording and the clock that plays it. The position on display is that of `TimeTravel`.

    Args:
        timeline: The recorded time.
        name: Path of the recording, for the header.
        speed: Recorded seconds per second.
        loop: Start again at the end instead of pausing there.
        paused: Start paused.
        position: First position to show; the next readable keyframe if it is unreadable.
        detail: One sentence for the user about the recording.
        clock: Returns the time in seconds of a monotonic clock.

    Raises:
        ValueError: `speed` is not positive.
    """

    def __init__(
        self,
        timeline: Timeline,
        name: str,
        *,
        speed: float = 1.0,
        loop: bool = False,
        paused: bool = False,
        position: int = 0,
        detail: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < speed < float("inf"):
            raise ValueError(f"the speed must be a positive number, not {speed:g}")
        self.history = timeline
        self.lock = threading.RLock()
        """Held while the position on display is moved or read."""
        self.name = ""
        """Recordings go by the names of their engines."""
        self.connection = Connection(name, ConnectionState.REPLAY, detail)
        self.speed = speed
        self.loop = loop
        self.starts_paused = paused
        self.first_position = position
        self._clock = clock
        self._last_tick: float | None = None
        self._position = -1
        """The position that the last `advance` returned."""
        self._time = 0.0
        """The recorded time that playing has reached there, in epoch seconds."""

    def start(self) -> None:
        """Starts to play: the time until the next `advance` is not played."""
        self._last_tick = None

    def advance(self, position: int) -> int | None:
        """Returns the position that is reached, by the time since the last call.

        Args:
            position: The position on display.

        Returns:
            `position` or a later one, or the first one after the end of a recording that loops;
            `None` if playing ends at `position`.
        """
        timeline = self.history
        with timeline.lock:
            before, self._last_tick = self._last_tick, self._clock()
            index, position = timeline.index, max(position, timeline.first)
            if position != self._position:  # the user has moved there
                self._position, self._time = position, index[position].time
            if before is None:
                return position
            if position >= timeline.last:
                return timeline.first if self.loop else None
            following = index[position + 1]
            pause = following.time - self._time
            self._time += (self._last_tick - before) * self.speed
            if following.kind & EventKind.RESYNC or pause > _LONGEST_PAUSE:
                self._time = max(self._time, following.time)
            self._position = max(index.at_time(self._time), position)
            return self._position
