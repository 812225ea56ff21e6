"""A list with a cursor, of which only the visible rows are made, and the titles above it."""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from textual import events
from textual.binding import Binding

from seqtop.text import format as fmt
from seqtop.text.column_layout import Column
from seqtop.tui.rendering.line_view import DrawnLine, LineView
from seqtop.tui.rendering.style import PLAIN, Line

MARGIN = 1
"""The cells at the left of each row, for the cursor's mark."""
CURSOR_MARK = "▌"


class LockedSource(Protocol):
    """A source of rows, read while its lock is held."""

    @property
    def lock(self) -> threading.RLock: ...


class ListView(LineView, can_focus=True, inherit_bindings=False):
    """A column of rows, each with an integer key, and a cursor on one of them.

    A subclass defines the rows (`num_rows`, `page`, `line`) and the cursor (`cursor_row`,
    `is_selected`, `select`). All of these are called while the source's lock is held.
    """

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("up,k", "move(-1)", "Up", show=False, id="move.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="move.down"),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False, id="move.page-up"),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False, id="move.page-down"),
        Binding("home,g", "first", "First row", show=False, id="move.first"),
        Binding("end,G", "last", "Last row", show=False, id="move.last"),
    ]

    def __init__(self, ui: LockedSource) -> None:
        super().__init__()
        self._ui: LockedSource = ui
        self._height = 0
        self.row_lines = 1
        """The lines of a row."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        raise NotImplementedError

    @property
    def cursor_row(self) -> int | None:
        """The index of the row with the cursor; `None` if that row is not in the list."""
        raise NotImplementedError

    def cursor_text(self) -> str:
        """Returns the cursor's row and the number of rows; empty for a list without rows."""
        if not self.num_rows:
            return ""
        row = fmt.UNKNOWN if self.cursor_row is None else fmt.count(self.cursor_row + 1)
        return f"row {row} of {fmt.count(self.num_rows)}"

    @property
    def cursor_mark(self) -> str:
        """The sign before the row with the cursor; empty for a row without highlighting."""
        return CURSOR_MARK

    def page(self, start: int, stop: int) -> Sequence[int]:
        """Returns the keys of the rows `start` to `stop`; fewer at the end of the list."""
        raise NotImplementedError

    def line(self, key: int) -> Line:
        """Returns a row without the cursor's mark."""
        raise NotImplementedError

    def more_lines(self, key: int) -> Sequence[Line]:
        """Returns the lines of a row below its first one, of which there are `row_lines` - 1."""
        return ()

    def is_selected(self, key: int) -> bool:
        """Returns whether the cursor is on a row."""
        raise NotImplementedError

    def select(self, key: int) -> None:
        """Puts the cursor on a row."""
        raise NotImplementedError

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        rows: list[DrawnLine] = []
        first, last = top // self.row_lines, -(-(top + count) // self.row_lines)
        with self._ui.lock:
            for key in self.page(first, last):
                mark = self.cursor_mark if self.is_selected(key) else ""
                margin = (mark, "accent") if mark else (" " * MARGIN, PLAIN)
                base = "cursor" if mark else PLAIN
                rows.append(((margin, *self.line(key)), base))
                if self.row_lines > 1:
                    rows += [((margin, *line), base) for line in self.more_lines(key)]
        return rows[top - first * self.row_lines :][:count] if self.row_lines > 1 else rows

    def visible_keys(self) -> Sequence[int]:
        """Returns the keys of the visible rows."""
        top, lines = self.scroll_offset.y, self.row_lines
        return self.page(top // lines, -(-(top + self.size.height) // lines))

    def reveal(self, row: int, *, around: bool = False) -> None:
        """Scrolls to a row, if it is not visible.

        Args:
            row: The index of the row.
            around: Whether to centre the row, so that it stays visible when it moves a little.
        """
        top, height = self.scroll_offset.y, self.size.height
        spare = height // 2 if around else 0
        first, last = row * self.row_lines, (row + 1) * self.row_lines - 1
        if first < top:
            self.scroll_to(y=max(first - spare, 0), animate=False)
        elif height and last >= top + height:  # the scroll bar may be about to appear only now
            self.scroll_to(y=last - height + 1 + spare, animate=False, force=True)

    def on_resize(self) -> None:
        top, bottom = self.scroll_offset.y, self.scroll_offset.y + self._height
        self._height = self.size.height
        with self._ui.lock:
            row = self.cursor_row
        # A visible cursor stays visible.
        if row is not None and top <= row * self.row_lines < bottom:
            self.reveal(row)

    def on_click(self, event: events.Click) -> None:
        y = (event.y + self.scroll_offset.y) // self.row_lines
        with self._ui.lock:
            keys = self.page(y, y + 1)
        if keys:
            self.select(keys[0])

    def action_move(self, by: int) -> None:
        with self._ui.lock:
            row = self.cursor_row
            self.go(0 if row is None else row + by)

    def action_page(self, by: int) -> None:
        self.action_move(by * max(self.size.height // self.row_lines - 1, 1))

    def action_first(self) -> None:
        with self._ui.lock:
            self.go(0)

    def action_last(self) -> None:
        with self._ui.lock:
            self.go(self.num_rows - 1)

    def go(self, row: int) -> None:
        """Puts the cursor on the row nearest to index `row`."""
        row = max(min(row, self.num_rows - 1), 0)
        if keys := self.page(row, row + 1):
            self.select(keys[0])


def header(columns: Iterable[Column], gap: str = " ") -> Line:
    """Returns the line of titles, with `gap` between any two."""
    return ((gap.join(column.aligned(column.title) for column in columns), PLAIN),)


class ColumnTitles(LineView):
    """The titles above a `ListView`.

    Args:
        titles: Returns the line of titles for the width of a row in cells.
    """

    def __init__(self, titles: Callable[[int], Line]) -> None:
        super().__init__()
        self._titles = titles

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        return [(((" " * MARGIN, PLAIN), *self._titles(self.text_width - MARGIN)), "header")]
