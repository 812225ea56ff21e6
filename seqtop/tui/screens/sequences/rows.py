"""Rows of sequences: those of a view, in its order, the cursor on the feed's selected one."""

from collections.abc import Sequence

from textual.message import Message

from seqtop.sequence import SequenceStatus
from seqtop.state.ordering import SequenceView
from seqtop.tui.rendering.list_view import CURSOR_MARK, ListView
from seqtop.tui.rendering.style import Line
from seqtop.tui.ui_state import Changes, UiState

FOLLOWED_MARK = "▸"


class SequenceRows(ListView):
    """A row per sequence; a subclass says how one is drawn (`draw`)."""

    class Moved(Message):
        """The cursor is on another sequence."""

    _feed: UiState

    def __init__(self, feed: UiState) -> None:
        super().__init__(feed)
        self._lines: dict[int, Line] = {}
        self._cursor = 0

    @property
    def view(self) -> SequenceView:
        """Which sequences, and in what order."""
        return self._feed.view

    def draw(self, seq_id: int) -> Line:
        raise NotImplementedError

    @property
    def num_rows(self) -> int:
        return len(self.view)

    @property
    def cursor_row(self) -> int | None:
        return self.view.index(self._feed.selected)

    @property
    def cursor_mark(self) -> str:
        return FOLLOWED_MARK if self._feed.following else CURSOR_MARK

    def page(self, start: int, stop: int) -> Sequence[int]:
        return self.view.page(start, stop)

    def is_selected(self, key: int) -> bool:
        return key == self._feed.selected

    def line(self, key: int) -> Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = self.draw(key)
        return line

    def show(self, frame: Changes) -> None:
        """Draw what `frame` changed; call it under the feed's lock."""
        if frame.touched is None:
            self._lines.clear()
        else:
            for seq_id in self._lines.keys() & frame.touched:  # goes through the smaller
                del self._lines[seq_id]
        if frame.ticked:
            self._forget_waiting()
        self.set_height(self.num_rows)
        self._keep_selection()
        self.redraw()

    def redraw(self) -> None:
        super().redraw()
        if self.size:
            with self._feed.lock:
                kept = self.in_sight()
                if len(self._lines) > 4 * max(len(kept), 64):
                    self._lines = {key: self._lines[key] for key in kept if key in self._lines}

    def select(self, key: int | None) -> None:
        """Put the cursor on a sequence and scroll to it."""
        with self._feed.lock:
            changed = key != self._feed.selected
            self._feed.selected = key
            self._feed.is_user_selection = True
            if changed:
                self._feed.block = None
            if (row := self.cursor_row) is not None:
                self._cursor = row
                self.reveal(row, around=self._feed.scroll_target == key)
            self.redraw()
        if changed:
            self.post_message(self.Moved())

    def reveal_selected(self) -> None:
        """Scroll to the row that somebody has chosen."""
        with self._feed.lock:
            if self._feed.is_user_selection and (row := self.cursor_row) is not None:
                self.reveal(row)

    def action_move(self, by: int) -> None:
        with self._feed.lock:
            row = self.cursor_row
            self.go(self._cursor if row is None else row + by)

    def _keep_selection(self) -> None:
        """The cursor stays on its sequence; where that is gone, on the row in its place.

        Until somebody chooses, it is on the first row: the one that has run longest.
        """
        feed = self._feed
        row = self.cursor_row
        if row is None or (row > 0 and not feed.is_user_selection):
            last = self.num_rows - 1
            self._cursor = max(min(self._cursor, last), 0) if feed.is_user_selection else 0
            keys = self.page(self._cursor, self._cursor + 1)
            feed.selected = keys[0] if keys else None
            self.post_message(self.Moved())
            return
        moved, self._cursor = row != self._cursor, row
        if (feed.is_scroll_target_selected() and moved) or feed.following:
            self.reveal(row, around=not feed.following)

    def _forget_waiting(self) -> None:
        """A second has passed: what has waited has waited longer."""
        for seq_id in self.in_sight():
            found = None if seq_id is None else self._feed.state.sequences.get(seq_id)
            if found is not None and found.status == SequenceStatus.WAITING:
                self._lines.pop(found.seq_id, None)
