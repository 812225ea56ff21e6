"""Pausing the display and moving it through the history of a source."""

from __future__ import annotations

from collections.abc import Iterable

from seqtop.history.event_index import EventKind
from seqtop.history.playback import Playback
from seqtop.history.segments import Gap
from seqtop.history.timeline import Cursor, RecordingError, Timeline
from seqtop.state import EngineState
from seqtop.state.freeze import freeze
from seqtop.state.listener import StateChange
from seqtop.text import format as fmt
from seqtop.tui.seek import Seek
from seqtop.tui.source import Source


class TimeTravel:
    """The position of a display: the newest state, or one of the history while paused.

    All of it is used under the source's lock.
    """

    def __init__(self, source: Source) -> None:
        self.playback = source if isinstance(source, Playback) else None
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
        return self._source.history.last

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
