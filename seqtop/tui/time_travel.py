"""Pausing the display and moving it through the history of a source."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from seqtop.history.event_index import EventKind
from seqtop.history.segments import Gap
from seqtop.history.timeline import Cursor, RecordingError, Timeline
from seqtop.live.playback import Playback
from seqtop.state import EngineState
from seqtop.state.freeze import freeze
from seqtop.state.listener import Listener, StateChange
from seqtop.text import format as fmt
from seqtop.tui.seek import Seek
from seqtop.tui.source import Engine, Source


class TimeTravel:
    """The position on display: the newest state, or one of the history. It has the only cursor.

    All of it is used under the source's lock.

    Args:
        source: The engine or recording.
        callback: Called after each change of an engine, on the thread that makes the change, unless
            the display is paused.

    Raises:
        RecordingError: No state of a recording can be read from its first position on.
    """

    def __init__(self, source: Source, callback: Callable[[], object] = lambda: None) -> None:
        self.seek_message = ""
        """One sentence on the position on display, set by the last move."""
        self.key_message = ""
        """One sentence on the reason why the last key did nothing; the next key clears it."""
        self.paused = False
        """True if the display is frozen, or a recording does not play."""
        self.engine: Engine | None = None
        """The source, if it is a running engine."""
        self.playback: Playback | None = None
        """The source, if it is a recording."""
        self.newest: EngineState
        """The newest state of the engine; of a recording the one on display."""
        self._timeline = source.history
        self._position: int | None = None
        """The position on display; `None` while that is the newest state of an engine."""
        # Made at the first move: a frozen state costs less, and often nothing else is needed.
        self._cursor: Cursor | None = None
        self._touched: set[int] | None = None
        self._listeners: tuple[Listener, ...] = ()
        self._callback = callback
        self._has_news = False
        if isinstance(source, Playback):
            self.playback = source
            self.paused = source.starts_paused
            self._cursor = self._first_cursor(source.first_position)
            self._position, self.newest = self._cursor.position, self._cursor.state
        else:
            self.engine = source
            self.newest = source.state
            source.add_listener(self._observe)
            source.add_callback(self._source_changed)
        self.state: EngineState = self.newest
        """The state on display, as of the last `take_touched`, `pause` or move."""

    @property
    def status_message(self) -> str:
        """The message on the last key, or else the one on the position on display."""
        return self.key_message or self.seek_message

    @property
    def has_position(self) -> bool:
        """True if a position of the history is on display: of a recording, or while paused."""
        return self._position is not None

    @property
    def position(self) -> int:
        """The position on display, as in `seqtop.history.event_index`."""
        return self._timeline.last if self._position is None else self._position

    @property
    def is_same_incarnation(self) -> bool:
        """True if the state on display and the newest one are of the same incarnation."""
        shown, newest = self.state.info, self.newest.info
        return shown is None or newest is None or shown.incarnation == newest.incarnation

    def add_listener(self, listener: Listener) -> None:
        """Calls `listener` with `newest`, and with each later change of it."""
        listener(StateChange(self.newest, None))
        self._listeners = (*self._listeners, listener)

    def take_news(self) -> bool:
        """Returns whether the engine has changed while paused, since the last call.

        Only the distance to the newest step then looks different.
        """
        has_news, self._has_news = self._has_news, False
        return has_news

    def take_touched(self) -> set[int] | None:
        """Shows the newest state, unless a position is on display.

        Returns:
            Ids of the sequences that changed since the last call; `None` means all.
        """
        touched, self._touched = self._touched, set()
        if self._position is None:
            self.state = self.newest
        return touched

    def pause(self) -> None:
        """Freezes the display, or stops playing."""
        self.seek_message = ""
        self.paused = True
        if self._position is None:
            self._position = self._timeline.last
            self.state = freeze(self.newest)

    def resume(self) -> None:
        """Shows the newest state again, or plays from here: from the beginning if it is the end."""
        self.seek_message = ""
        self.paused = False
        if self.playback is None:
            self._position = self._cursor = self._touched = None
            return
        if self.position >= self._timeline.last:
            self._move(self._timeline.first)
        self.playback.start()

    def play(self) -> bool:
        """Goes to the position that playing has reached.

        Returns:
            Whether a recording plays on.
        """
        if self.paused or self.playback is None:
            return False
        with self._timeline.lock:
            reached = self.playback.advance(self.position)
            while reached is not None and reached != self.position and not self._move(reached):
                reached = self._timeline.keyframe_after(reached)
        self.paused = reached is None
        return not self.paused

    def go(self, seek: Seek, failure: str) -> bool:
        """Pauses and shows the position that `seek` finds.

        Args:
            seek: Finds the position. If it finds none, nothing is paused.
            failure: The key message if no other position is found.

        Returns:
            Whether another position is on display.
        """
        timeline = self._timeline
        with timeline.lock:
            position = self.position
            start = max(position, timeline.first)
            wanted = seek(timeline, start)
            if wanted is None and start > position:
                wanted = start  # the position on display was dropped: this is the nearest
        if wanted is None:
            self.key_message = failure
            return False
        if not self.paused:
            self.pause()
        if wanted == self.position:
            self.key_message = failure
            return False
        with timeline.lock:
            if self._move(wanted):
                self.seek_message = gap_message(timeline, start, self.position)
        return True

    def _move(self, position: int) -> bool:
        """Shows `position`, or the nearest in the history.

        Returns:
            Whether it could be read. If not, the position is the one where reading ended.
        """
        before, touched = self.state, None
        was_newest = before is self.newest  # so it is in a recording, while an engine goes on
        try:
            if self._cursor is None:
                self._cursor = Cursor(self._timeline, position)
            else:
                touched = self._cursor.move(position)
            touched = _differing(before, self._cursor.state) if touched is None else touched
        except RecordingError as error:
            self.seek_message = f"The history cannot be read: {error}."
        if self._cursor is not None:
            self.state, self._position = self._cursor.state, self._cursor.position
        change = StateChange(self.state, touched)
        self._touched = _union(self._touched, touched)
        if was_newest:
            self._notify(change)
        return touched is not None

    def _first_cursor(self, position: int) -> Cursor:
        """Returns a cursor at `position`, or where reading is possible: later, or else before."""
        timeline, following = self._timeline, position
        while True:
            try:
                return Cursor(timeline, following)
            except RecordingError as error:
                self.seek_message = f"The history cannot be read: {error}."
            keyframe = timeline.keyframe_after(following)
            if keyframe is None:
                return self._last_cursor(position)
            following = keyframe

    def _last_cursor(self, position: int) -> Cursor:
        """Returns a cursor at the last position before `position` that can be read."""
        timeline = self._timeline
        while True:
            keyframe = timeline.keyframe_before(position)
            try:
                cursor = Cursor(timeline, keyframe)
            except RecordingError:
                if keyframe <= timeline.first:
                    raise
                position = keyframe - 1
                continue
            with contextlib.suppress(RecordingError):
                cursor.move(position)
            return cursor

    def _source_changed(self) -> None:
        if self.paused:
            self._has_news = True
        else:
            self._callback()

    def _observe(self, change: StateChange) -> None:
        if self._position is None:
            self._touched = _union(self._touched, change.touched)
        self._notify(change)

    def _notify(self, change: StateChange) -> None:
        self.newest = change.state
        for listener in self._listeners:
            listener(change)


def _union(touched: set[int] | None, more: Iterable[int] | None) -> set[int] | None:
    """Adds ids to `touched`; `None` stands for all."""
    if touched is None or more is None:
        return None
    touched.update(more)
    return touched


def gap_message(timeline: Timeline, start: int, stop: int) -> str:
    """Returns sentences on the gaps at `stop` and on the way there from `start`, if any."""
    low, high = min(start, stop), max(start, stop)
    gaps = [gap for gap in timeline.gaps if gap.restarted or gap.num_missed]
    here = [gap for gap in gaps if _is_at(timeline, gap, stop)]
    between = [gap for gap in gaps if low < gap.position <= high and gap not in here]
    sentences = [f"{str(gap)[:1].upper()}{str(gap)[1:]} here." for gap in here]
    if len(between) > 1:
        sentences.append(f"{fmt.plural(len(between), 'gap')} in the history in between.")
    elif between and between[0].restarted:
        sentences.append("The engine was restarted in between.")
    else:
        sentences += [f"{gap} in between." for gap in between]
    return " ".join(sentences)


def _is_at(timeline: Timeline, gap: Gap, position: int) -> bool:
    """Returns whether `position` is in the first step after a gap."""
    index = timeline.index
    if not timeline.first <= gap.position <= position:
        return False
    restart = index.next(EventKind.RESTART, gap.position)
    is_same_start = restart is None or position < restart
    return is_same_start and index[gap.position].step == index[position].step


def _differing(old: EngineState, new: EngineState) -> set[int]:
    """Returns the sequences that are not the same objects: states share finished sequences."""
    changed = old.sequences.keys() ^ new.sequences.keys()
    changed.update(
        seq_id
        for seq_id, sequence in new.sequences.items()
        if old.sequences.get(seq_id) is not sequence
        or old.requests.get(sequence.request_id) is not new.requests[sequence.request_id]
    )
    return changed
