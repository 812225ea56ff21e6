"""Playback of a timeline: of a recording, or of the store of a live session, which may grow."""

from __future__ import annotations

import threading
import time
from types import TracebackType

from seqtop.history.event_index import EventKind, IndexEntry
from seqtop.history.timeline import Cursor, RecordingError, Timeline
from seqtop.live.connection import Connection, ConnectionState, ControlError
from seqtop.process.observable import Observable
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.state.listener import Listener, StateChange

_TICK_SECONDS = 1 / 30
_LONGEST_PAUSE = 5.0
"""Longest pause in recorded seconds that is played. Engines send heartbeats, so a longer one is a
gap with nothing to show."""


class Playback(Observable):
    """A `Source` that shows a timeline at a position, which time or the user moves.

    Unreadable parts of the timeline raise no error: `connection.detail` describes them, playing
    skips them, and `move` stays where it is.

    Args:
        timeline: The timeline to play.
        name: Path or endpoint, for the header.
        speed: Recorded seconds per second.
        loop: Start again at the end instead of pausing there.
        paused: Start paused.
        position: First position to show; the next readable keyframe if it is unreadable.
        detail: One sentence for the user about the timeline.

    Raises:
        ValueError: `speed` is not positive.
        RecordingError: No state from `position` on can be read.
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
    ) -> None:
        super().__init__()
        self.timeline = timeline
        self.lock = threading.RLock()
        """Held while `state` changes; hold it while reading `state`."""
        self.connection = Connection(name, ConnectionState.REPLAY, detail)
        self.loop = loop
        self._speed = _validated(speed)
        self._cursor = self._first_cursor(position)
        self.entry = self._current_entry()
        """Message number, time, step and kind of the position."""
        self._time = self.entry.time
        """The recorded time that playing has reached, in epoch seconds."""
        self._last_tick: float | None = None
        self._listeners: tuple[Listener, ...] = ()
        self._playing = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seqtop-replay", daemon=True)
        if not paused:
            self._playing.set()

    # The interface of a `Source`.

    @property
    def state(self) -> EngineState:
        """The state at `position`."""
        return self._cursor.state

    @property
    def history(self) -> Timeline:
        """The timeline that is played."""
        return self.timeline

    def add_listener(self, listener: Listener) -> None:
        """Calls `listener` with the current state, and with each later change of the state."""
        with self.lock:
            listener(StateChange(self.state, None))
            self._listeners = (*self._listeners, listener)

    def submit(self, prompt: str, params: SamplingParams) -> str:
        """Raises `ControlError`: a recording accepts no requests."""
        raise ControlError("a recording cannot be changed")

    def abort(self, request_id: str) -> None:
        """Raises `ControlError`: a recording accepts no requests."""
        raise ControlError("a recording cannot be changed")

    # The position.

    @property
    def position(self) -> int:
        """The position that is shown."""
        return self._cursor.position

    @property
    def paused(self) -> bool:
        """True if playing is paused."""
        return not self._playing.is_set()

    @property
    def at_end(self) -> bool:
        """True if the newest position is shown."""
        return self.position >= self.timeline.last

    @property
    def speed(self) -> float:
        """Recorded seconds per second. Setting it raises `ValueError` if it is not positive."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        with self.lock:
            self._speed = _validated(speed)
            self.changed()

    # Playing and moving.

    def play(self) -> None:
        """Plays from the current position, or from the beginning if that is the end."""
        with self.lock:
            if self.at_end:
                self.move(self.timeline.first)
            self._last_tick = None
            self._playing.set()
            self.changed()

    def pause(self) -> None:
        """Stops playing; `play` continues."""
        with self.lock:
            self._playing.clear()
            self.changed()

    def move(self, position: int) -> bool:
        """Goes to `position`, or to the nearest one; returns whether the state was readable."""
        with self.lock, self.timeline.lock:
            try:
                touched = self._cursor.move(position)
            except RecordingError as error:
                self.connection.detail = str(error)
                self._publish(None)  # reading may have ended on the way
                return False
            self.entry = self._current_entry()
            self._time = self.entry.time
            self._publish(touched)
            return True

    def tick(self, now: float) -> None:
        """Advances playing to `now`, in seconds of a monotonic clock."""
        with self.lock, self.timeline.lock:
            before, self._last_tick = self._last_tick, now
            if self.paused or before is None:
                return
            reached = self._time + (now - before) * self._speed
            if self.at_end:
                self._end()
                return
            index = self.timeline.index
            following = index[max(self.position, index.first) + 1]
            pause = following.time - self._time
            if following.kind & EventKind.RESYNC or pause > _LONGEST_PAUSE:
                reached = max(reached, following.time)
            target = index.at_time(reached)
            if target > self.position and not self.move(target):
                self._skip(target)
            self._time = reached

    def _publish(self, touched: set[int] | None) -> None:
        for listener in self._listeners:
            listener(StateChange(self.state, touched))
        self.changed()

    def _end(self) -> None:
        if self.loop:
            self.move(self.timeline.first)
        else:
            self.pause()

    def _skip(self, position: int) -> None:
        """Continues at the next readable keyframe, or pauses if there is none."""
        while (found := self.timeline.keyframe_after(position)) is not None:
            if self.move(found):
                return
            position = found
        self.pause()

    def _first_cursor(self, position: int) -> Cursor:
        while True:
            try:
                return Cursor(self.timeline, position)
            except RecordingError as error:
                self.connection.detail = str(error)
                found = self.timeline.keyframe_after(position)
                if found is None:
                    raise
                position = found

    def _current_entry(self) -> IndexEntry:
        return self.timeline.index[self.position]

    # The thread.

    def start(self) -> None:
        """Starts the thread that plays until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._closing.set()
        self._playing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._playing.wait()
            self.tick(time.monotonic())
            self._closing.wait(_TICK_SECONDS)

    def __enter__(self) -> Playback:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _validated(speed: float) -> float:
    if not 0 < speed < float("inf"):
        raise ValueError(f"the speed must be a positive number, not {speed:g}")
    return speed
