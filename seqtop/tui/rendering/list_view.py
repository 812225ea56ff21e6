"""Rows with a cursor, of which only the visible ones are ever looked at."""

import threading
from collections.abc import Sequence
from typing import Protocol

from textual import events
from textual.binding import Binding

from seqtop.tui.rendering.line_view import LineView, Look
from seqtop.tui.rendering.style import Line

MARGIN = 1
"""Cells on the left of the columns, for the cursor's mark."""
CURSOR_MARK = "▌"


class LockedSource(Protocol):
    """What rows are read from, while its lock is held; a `UiState` is one."""

    @property
    def lock(self) -> threading.RLock: ...


class ListView(LineView, can_focus=True, inherit_bindings=False):
    """A column of rows, each known by a number. Only those that look different are drawn again.

    A subclass says which rows there are (`num_rows`, `page`), where the cursor is (`cursor_row`),
    what it does (`select`) and how a row looks (`line`). All are asked under the feed's lock.
    """

    MARGIN = MARGIN
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("up,k", "move(-1)", "Up", show=False, id="move.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="move.down"),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False, id="move.page-up"),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False, id="move.page-down"),
        Binding("home,g", "first", "First row", show=False, id="move.first"),
        Binding("end,G", "last", "Last row", show=False, id="move.last"),
    ]

    def __init__(self, feed: LockedSource) -> None:
        super().__init__()
        self._feed: LockedSource = feed
        self._height = 0

    @property
    def num_rows(self) -> int:
        raise NotImplementedError

    @property
    def cursor_row(self) -> int | None:
        """`None` while the cursor is on no row that is shown."""
        raise NotImplementedError

    @property
    def cursor_mark(self) -> str:
        """What stands before the row that the cursor is on."""
        return CURSOR_MARK

    def page(self, start: int, stop: int) -> Sequence[int]:
        """The keys of rows `start` to `stop`, fewer at the end."""
        raise NotImplementedError

    def line(self, key: int) -> Line:
        """How a row looks without the cursor."""
        raise NotImplementedError

    def is_selected(self, key: int) -> bool:
        """Whether the cursor is on this row."""
        raise NotImplementedError

    def select(self, key: int) -> None:
        """Put the cursor on a row."""
        raise NotImplementedError

    def looks(self, y: int, count: int) -> Sequence[Look]:
        top = y + self.scroll_offset.y
        with self._feed.lock:
            looks = [
                (self.cursor_mark if self.is_selected(key) else "", self.line(key))
                for key in self.page(top, top + count)
            ]
        return looks + [("", ())] * (count - len(looks))

    def in_sight(self) -> list[int | None]:
        """The key of every visible line, `None` below the last row."""
        top, height = self.scroll_offset.y, self.size.height
        keys: list[int | None] = [*self.page(top, top + height)]
        return keys + [None] * (height - len(keys))

    def reveal(self, row: int, *, around: bool = False) -> None:
        """Scroll no more than it takes to see a row; or so far that it has others `around` it,
        among which it may move and stay in sight."""
        top, height = self.scroll_offset.y, self.size.height
        spare = height // 2 if around else 0
        if row < top:
            self.scroll_to(y=max(row - spare, 0), animate=False)
        elif height and row >= top + height:  # the scroll bar may be about to appear only now
            self.scroll_to(y=row - height + 1 + spare, animate=False, force=True)

    def on_resize(self) -> None:
        top, bottom = self.scroll_offset.y, self.scroll_offset.y + self._height
        self._height = self.size.height
        with self._feed.lock:
            row = self.cursor_row
        if row is not None and top <= row < bottom:  # what was in sight stays in sight
            self.reveal(row)

    def on_click(self, event: events.Click) -> None:
        y = event.y + self.scroll_offset.y
        with self._feed.lock:
            keys = self.page(y, y + 1)
        if keys:
            self.select(keys[0])

    def action_move(self, by: int) -> None:
        with self._feed.lock:
            row = self.cursor_row
            self.go(0 if row is None else row + by)

    def action_page(self, by: int) -> None:
        self.action_move(by * max(self.size.height - 1, 1))

    def action_first(self) -> None:
        with self._feed.lock:
            self.go(0)

    def action_last(self) -> None:
        with self._feed.lock:
            self.go(self.num_rows - 1)

    def go(self, row: int) -> None:
        """Put the cursor on a row, or the nearest that exists."""
        row = max(min(row, self.num_rows - 1), 0)
        if keys := self.page(row, row + 1):
            self.select(keys[0])
