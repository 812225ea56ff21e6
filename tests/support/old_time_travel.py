"""Time travel with two cursors, to compare with the one that replaces it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from seqtop.history.event_index import EventKind, IndexEntry
from seqtop.history.timeline import Cursor, RecordingError, Timeline
from seqtop.live.connection import Connection, ConnectionState, ControlError
from seqtop.process.observable import Observable
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.state.freeze import freeze
from seqtop.state.listener import Listener, StateChange
from seqtop.tui.seek import Seek
from seqtop.tui.time_travel import _differing, gap_message

_TICK_SECONDS = 1 / 30
_LONGEST_PAUSE = 5.0
"""Longest pause in recorded seconds that is played. Engines send heartbeats, so a longer one is a
gap with nothing to show."""


class OldPlayback(Observable):
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

    def __enter__(self) -> OldPlayback:
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


class OldTimeTravel:
    """The position of a display: the newest state, or one of the history while paused.

    All of it is used under the source's lock.
    """

    def __init__(self, source: Any) -> None:
        self.playback = source if isinstance(source, OldPlayback) else None
        """The source, if it is a recording: the recording itself is paused and moved."""
        self.state: EngineState = source.state
        """The state on display, as of the last `take_touched`, `pause` or `go`."""
        self.seek_message = ""
        """One sentence on the position on display, set by the last move."""
        self.key_message = ""
        """One sentence on the reason why the last key did nothing; the next key clears it."""
        self._source = source
        self._held: HeldState | None = None
        self._touched: set[int] | None = None
        source.add_listener(self._observe)

    @property
    def status_message(self) -> str:
        """The message on the last key, or else the one on the position on display."""
        return self.key_message or self.seek_message

    @property
    def paused(self) -> bool:
        return self.is_holding if self.playback is None else self.playback.paused

    @property
    def is_holding(self) -> bool:
        """True if the display is frozen while the source continues."""
        return self._held is not None

    @property
    def position(self) -> int:
        """The position on display, as in `seqtop.history.event_index`."""
        moving = self.playback or self._held
        if moving is not None:
            return moving.position
        return int(self._source.history.last)

    @property
    def is_same_incarnation(self) -> bool:
        """True if the state on display and the newest one are of the same incarnation."""
        shown, newest = self.state.info, self._source.state.info
        return shown is None or newest is None or shown.incarnation == newest.incarnation

    def take_touched(self) -> set[int] | None:
        """Shows the source's newest state, unless the display is frozen.

        Returns:
            Ids of the sequences that changed since the last call; `None` means all.
        """
        touched, self._touched = self._touched, set()
        if self._held is None:
            self.state = self._source.state
        return touched

    def pause(self) -> None:
        """Freezes the display, or pauses the recording."""
        self.seek_message = ""
        if self.playback is not None:
            self.playback.pause()
        else:
            self._held = HeldState(self._source.state, self._source.history)
            self.state = self._held.state

    def resume(self) -> None:
        """Shows the newest state again, or continues the recording."""
        self.seek_message = ""
        if self.playback is not None:
            self.playback.play()
        self._held = None
        self._touched = None

    def go(self, seek: Seek, failure: str) -> bool:
        """Pauses and shows the position that `seek` finds.

        Args:
            seek: Finds the position. If it finds none, nothing is paused.
            failure: The key message if no other position is found.

        Returns:
            Whether another position is on display.
        """
        timeline = self._source.history
        with timeline.lock:
            position = self.position
            start = max(position, timeline.first)
            found = seek(timeline, start)
            if found is None and start > position:
                found = start  # the position on display was dropped: this is the nearest
        if found is None:
            self.key_message = failure
            return False
        if not self.paused:
            self.pause()
        if found == self.position:
            self.key_message = failure
            return False
        with timeline.lock:
            self.seek_message = self._move(found) or gap_message(timeline, start, self.position)
        return True

    def _move(self, position: int) -> str:
        """Moves the paused display; returns a sentence if the history cannot be read."""
        if self.playback is not None:
            self.playback.move(position)  # if that fails, the connection's detail says so
            return ""
        assert self._held is not None, "the display is paused"
        try:
            self._add_touched(self._held.move(position))
        except RecordingError as error:
            self._touched = None
            return f"The history cannot be read: {error}."
        finally:
            self.state = self._held.state
        return ""

    def _observe(self, change: StateChange) -> None:
        if self._held is None:
            self._add_touched(change.touched)

    def _add_touched(self, touched: Iterable[int] | None) -> None:
        if touched is None or self._touched is None:
            self._touched = None
        else:
            self._touched.update(touched)


class HeldState:
    """A frozen state of a session, which can be moved through the session's history.

    Args:
        state: The session's newest state.
        timeline: The session's history.
    """

    def __init__(self, state: EngineState, timeline: Timeline) -> None:
        self._timeline = timeline
        self._frozen = freeze(state)
        self._position = timeline.last
        # Made at the first move: a frozen state costs less, and often nothing else is needed.
        self._cursor: Cursor | None = None

    @property
    def state(self) -> EngineState:
        return self._frozen if self._cursor is None else self._cursor.state

    @property
    def position(self) -> int:
        return self._position if self._cursor is None else self._cursor.position

    def move(self, position: int) -> set[int]:
        """Moves to `position`, or the nearest in the history.

        Returns:
            Ids of the sequences that changed, appeared or disappeared.

        Raises:
            RecordingError: The history cannot be read there.
        """
        before, touched = self.state, None
        if self._cursor is None:
            self._cursor = Cursor(self._timeline, position)
        else:
            touched = self._cursor.move(position)
        return _differing(before, self.state) if touched is None else touched
