"""One pass over a timeline, for one or several readers.

Everything that reads a recording from its beginning on reads it by a `Replay`: the events in order,
the state that they lead to, and the gaps between them. So each event is decoded once and applied to
one state, however many readers there are.

The timeline may grow, and is then read instead of the live stream: reading can start at any time,
does not slow down the thread that receives, and gives what is found its position on the timeline.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from seqtop.history.timeline import RecordingError, Timeline
from seqtop.state import EngineState
from seqtop.text import format as fmt
from seqtop.wire.messages import Event

ShowProgress: TypeAlias = Callable[[float], object]
"""Shows which part of something is done, from 0 to 1."""

_SLICE_SECONDS = 0.01
"""Seconds for which a thread reads without a pause."""
_PAUSE = 2.0
"""The length of a pause in multiples of the time before it: other threads need the interpreter."""
_IDLE_SECONDS = 0.1
"""Seconds of a pause after everything has been read."""
_PROGRESS_SECONDS = 0.1
"""Seconds after which progress is shown again."""
_REPORT_SECONDS = 0.5
"""Seconds after which a thread reports again: each report draws a frame."""
_MAX_FAULT = 200
"""Characters of the description of a fault."""


def no_progress(_share: float) -> None:
    """Shows no progress."""


class Reader:
    """A reader of a timeline; subclasses override what they need.

    The state is shared with the other readers of a pass: do not change it.
    """

    needs_state = True
    """False if it reads events alone, without the state after them."""
    needs_candidates = False
    """True if it needs the candidates of output tokens, too: `top_logprobs`."""
    last_position: float = math.inf
    """The last position that it reads."""

    def start(self, position: int, state: EngineState) -> None:
        """Starts, or continues after a gap, from the state at a position, which events change."""

    def before(self, event: Event) -> None:
        """Reads the next event before it is applied to the state."""

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Reads the next event, at `position`, after it was applied to the state.

        Args:
            position: Its position on the timeline.
            event: The event.
            touched: The ids of the sequences that it changed; none without a state.
        """

    def stop(self) -> None:
        """Stops at a part that cannot be read or has been dropped, until the next `start`."""


class Replay:
    """A pass over a timeline from its beginning to its end, and further as it grows.

    One thread calls `advance` or `run`.

    Args:
        timeline: The timeline.
        readers: The readers.
        first: The position of the state to begin with; by default the first one.
        last: The last position to read; by default all that there are.
        max_finished: The finished requests that the state keeps; by default as many as recorded.
    """

    def __init__(
        self,
        timeline: Timeline,
        readers: Sequence[Reader],
        *,
        first: int = 0,
        last: float = math.inf,
        max_finished: int | None = None,
    ) -> None:
        self.errors: list[str] = []
        """A sentence for each part that could not be read."""
        self.failure = ""
        """The fault of a reader after which nothing more is read; empty without one."""
        self.position = first
        """The position of the last event that was read."""
        self._timeline = timeline
        self._readers = [*readers]
        self.last = last
        """The last position to read."""
        self._max_finished = max_finished
        self._state: EngineState | None = None
        """The state at `position`; `None` at first and in a gap."""
        self._applies = any(reader.needs_state for reader in readers)
        self._keeps_candidates = any(reader.needs_candidates for reader in readers)
        self._unreadable_end = -1
        """The end of the timeline when its last part could not be read; -1 otherwise."""
        self._events: Iterator[tuple[int, Event | None]] = iter(())

    @property
    def is_behind(self) -> bool:
        """True if there are events on the timeline that are still to be read."""
        if self.failure:
            return False
        end = min(self._timeline.last, self.last)
        if self._state is None:
            return self._timeline.last > self._unreadable_end and self.position <= end
        return self.position < end

    @property
    def share(self) -> float:
        """The part that has been read, from 0 to 1."""
        return self.position / max(min(self._timeline.last, self.last), 1)

    @property
    def problem(self) -> str:
        """The end of reading by a fault, or the number of unreadable parts; empty without any."""
        if self.failure:
            return f"stopped by a fault: {self.failure}"
        return fmt.plural(len(self.errors), "unreadable part") if self.errors else ""

    def advance(self, seconds: float) -> bool:
        """Reads for about this many seconds, beyond what cannot be read; returns `is_behind`."""
        deadline = time.monotonic() + seconds
        while self.is_behind:
            try:
                self.read()
            except RecordingError as error:
                self.errors.append(str(error))
                self._skip()
            if time.monotonic() >= deadline:
                break
        return self.is_behind

    def run(self, progress: ShowProgress = no_progress) -> None:
        """Reads everything there is.

        Raises:
            RecordingError: A part cannot be read.
        """
        shown = time.monotonic()
        while self.is_behind:
            self.read()
            if (now := time.monotonic()) > shown + _PROGRESS_SECONDS:
                shown = now
                progress(self.share)

    def read(self) -> None:
        """Reads the next event, or the state to begin with.

        Raises:
            RecordingError: It cannot be read.
        """
        if self._state is None:
            self._start_at(self.position)
        else:
            self._read_next()

    def _start_at(self, position: int) -> None:
        with self._timeline.lock:  # so that the position cannot be dropped before it is read
            self.position = max(position, self._timeline.first)
            self._state = self._timeline.at(self.position)
        self._state.keeps_candidates = self._keeps_candidates
        if self._max_finished is not None:
            self._state.max_finished = self._max_finished
        for reader in self._readers:
            reader.start(self.position, self._state)
        self._events = iter(())

    def _read_next(self) -> None:
        following = next(self._events, None)
        if following is None:
            end = int(min(self._timeline.last, self.last))
            self._events = self._timeline.events(self.position, end)
            return
        position, event = following
        if position != self.position + 1:
            self._skip()  # the events between have been dropped
        elif event is None:  # a snapshot
            self._start_at(position)
        else:
            self._apply(position, event)
            self.position = position

    def _apply(self, position: int, event: Event) -> None:
        readers = [reader for reader in self._readers if position <= reader.last_position]
        for reader in readers:
            reader.before(event)
        touched: Sequence[int] = ()
        if self._applies:
            assert self._state is not None, "`_start_at` comes first"
            touched = [*self._state.apply(event)]
        for reader in readers:
            reader.apply(position, event, touched)

    def _skip(self) -> None:
        """Continues after a part that cannot be read or has been dropped."""
        for reader in self._readers:
            reader.stop()
        self._state = None
        self._events = iter(())
        if self.position >= self._timeline.first:
            beyond = self._timeline.keyframe_after(self.position)
            if beyond is None:
                self._unreadable_end = self._timeline.last
            self.position = self._timeline.last if beyond is None else beyond


class ReplayThread:
    """A thread that advances a replay for a third of the time, from `start` to `close`.

    A fault of a reader ends it, as the replay's `failure`.

    Args:
        replay: The replay.
        on_progress: Called on the thread after more has been read, at most twice a second.
    """

    def __init__(self, replay: Replay, on_progress: Callable[[], object]) -> None:
        self._replay = replay
        self._on_progress = on_progress
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seqtop-replay", daemon=True)

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
        pause = reported = 0.0
        has_news = False
        while not self._closing.wait(pause):
            begun, was_behind = time.monotonic(), self._replay.is_behind
            try:
                is_behind = self._replay.advance(_SLICE_SECONDS)
            except Exception as error:  # noqa: BLE001 (the thread would end in silence)
                self._replay.failure = f"{type(error).__name__}: {error}"[:_MAX_FAULT]
                self._on_progress()
                return
            has_news |= was_behind
            if has_news and begun - reported >= _REPORT_SECONDS:
                has_news, reported = False, begun
                self._on_progress()
            pause = _PAUSE * (time.monotonic() - begun) if is_behind else _IDLE_SECONDS
