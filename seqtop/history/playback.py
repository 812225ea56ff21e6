"""Plays what was recorded: a source for the app whose clock can be held, turned and set.

It plays any timeline: a `Recording`, or the `History` of a live session that goes on meanwhile.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

from seqtop.connection import Connection, ConnectionState, ControlError
from seqtop.history.event_index import EventKind, IndexEntry
from seqtop.history.timeline import Cursor, RecordingError, Timeline
from seqtop.observable import Observable
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.state.listener import Watcher

_TICK_SECONDS = 1 / 30
_LONGEST_SILENCE = 5.0
"""Recorded seconds between moments that are waited for. Engines send heartbeats: more is a hole,
in which there is nothing to look at."""


class Playback(Observable):
    """A `Source` that shows `timeline` at a position which time moves on, or the user.

    Every movement leaves playing as it is, but for `step`, which pauses. None raises for a
    stretch that cannot be read: `link.detail` says so, and the position stays, or, while playing,
    skips the stretch.

    It changes whenever the state, the link or a setting has.

    Args:
        name: What is played, for the header: a path, or an endpoint.
        speed: Recorded seconds per second.
        loop: Begin again at the end rather than pause there.
        paused: Whether to begin so.
        position: Where to begin; by default at the beginning.
        detail: One sentence for the user on what is played.

    Raises:
        ValueError: `speed` is not positive.
        RecordingError: no state from `position` on can be read.
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
        """Held while the state changes; hold it while reading `state`."""
        self.link = Connection(name, ConnectionState.REPLAY, detail)
        self.loop = loop
        self._speed = _checked(speed)
        self._cursor = self._first_readable(position)
        self.entry = self._entry_here()
        """Number, time, step and kind of the moment shown."""
        self._time = self.entry.time
        """The recorded time that playing has reached; the state is the last one not after it."""
        self._ticked_at: float | None = None
        self._watchers: tuple[Watcher, ...] = ()
        self._touched: set[int] | None = None
        self._playing = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seqtop-replay", daemon=True)
        if not paused:
            self._playing.set()

    # What a `Source` has.

    @property
    def state(self) -> EngineState:
        return self._cursor.state

    @property
    def history(self) -> Timeline:
        """What is played."""
        return self.timeline

    def drain(self) -> set[int] | None:
        """Ids of the sequences touched since the last call; `None` means everything."""
        with self.lock:
            touched, self._touched = self._touched, set()
            return touched

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` told of every change from now on."""
        with self.lock:
            self._watchers = (*self._watchers, watcher)

    def submit(self, prompt: str, params: SamplingParams) -> str:
        """Raises `ControlError`."""
        raise ControlError("a recording cannot be changed")

    def abort(self, request_id: str) -> None:
        """Raises `ControlError`."""
        raise ControlError("a recording cannot be changed")

    # Where it stands.

    @property
    def position(self) -> int:
        return self._cursor.position

    @property
    def paused(self) -> bool:
        return not self._playing.is_set()

    @property
    def at_end(self) -> bool:
        return self.position >= self.timeline.last

    @property
    def speed(self) -> float:
        """Recorded seconds per second. Setting it raises `ValueError` unless it is positive."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        with self.lock:
            self._speed = _checked(speed)
            self.changed()

    # What moves it.

    def play(self) -> None:
        """Go on; from the beginning, if it stands at the end."""
        with self.lock:
            if self.at_end:
                self.move(self.timeline.first)
            self._ticked_at = None
            self._playing.set()
            self.changed()

    def pause(self) -> None:
        with self.lock:
            self._playing.clear()
            self.changed()

    def move(self, position: int) -> bool:
        """Go to a position, or the nearest on record; returns whether the state was readable."""
        with self.lock, self.timeline.lock:
            try:
                touched = self._cursor.move(position)
            except RecordingError as error:
                self._touched = None
                self.link.detail = str(error)
                self.changed()
                return False
            for watcher in self._watchers:
                watcher(self.state, touched)
            if touched is None or self._touched is None:
                self._touched = None
            else:
                self._touched |= touched
            self.entry = self._entry_here()
            self._time = self.entry.time
            self.changed()
            return True

    def seek(self, step: int) -> bool:
        """Go to the end of `step`, of the engine's start that is shown."""
        with self.lock, self.timeline.lock:
            return self.move(self.timeline.index.at_step(step, near=self.position))

    def seek_time(self, moment: float) -> bool:
        """Go to the last moment not after `moment`, epoch seconds."""
        with self.lock, self.timeline.lock:
            return self.move(self.timeline.index.at_time(moment))

    def step(self, count: int) -> bool:
        """Pause, and go so many steps on, or back if negative; returns whether it moved."""
        self.pause()
        with self.lock, self.timeline.lock:
            marks, position = self.timeline.index, max(self.position, self.timeline.first)
            for _ in range(abs(count)):
                found = marks.next_step(position) if count > 0 else marks.previous_step(position)
                if found is None:
                    break
                position = found
            return position != self.position and self.move(position)

    def jump(self, kind: EventKind, direction: int) -> bool:
        """Go to the next moment of `kind`, or the previous one if `direction` is negative.

        Returns whether there is one.
        """
        with self.lock, self.timeline.lock:
            marks = self.timeline.index
            find = marks.next if direction > 0 else marks.previous
            found = find(kind, self.position)
            return found is not None and self.move(found)

    def tick(self, now: float) -> None:
        """Let time pass until `now`, seconds of any clock that only runs forwards."""
        with self.lock, self.timeline.lock:
            before, self._ticked_at = self._ticked_at, now
            if self.paused or before is None:
                return
            reached = self._time + (now - before) * self._speed
            if self.at_end:
                self._end()
                return
            marks = self.timeline.index
            here = max(self.position, marks.first)
            coming = marks[here + 1]
            if coming.kind & EventKind.RESYNC or coming.time - self._time > _LONGEST_SILENCE:
                reached = max(reached, coming.time)
            target = marks.at_time(reached)
            if target > self.position and not self.move(target):
                self._skip(target)
            self._time = reached

    def _end(self) -> None:
        if self.loop:
            self.move(self.timeline.first)
        else:
            self.pause()

    def _skip(self, position: int) -> None:
        """Go on after a stretch that cannot be read, or stop before it if it is the last."""
        while (found := self.timeline.keyframe_after(position)) is not None:
            if self.move(found):
                return
            position = found
        self.pause()

    def _first_readable(self, position: int) -> Cursor:
        while True:
            try:
                return Cursor(self.timeline, position)
            except RecordingError as error:
                self.link.detail = str(error)
                found = self.timeline.keyframe_after(position)
                if found is None:
                    raise
                position = found

    def _entry_here(self) -> IndexEntry:
        return self.timeline.index[self.position]

    # The thread that ticks.

    def start(self) -> None:
        """Play on a thread of its own, until `close`."""
        self._thread.start()

    def close(self) -> None:
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


def _checked(speed: float) -> float:
    if not 0 < speed < float("inf"):
        raise ValueError(f"the speed must be a positive number, not {speed:g}")
    return speed
