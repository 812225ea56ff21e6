"""A map of cells and a cursor that moves over them: what all maps of blocks have in common."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import ClassVar, Generic, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from seqtop.tui.rendering.style import PLAIN, Inked, Line
from seqtop.tui.screens.blocks.cells import with_cursor

CURSOR_MARK = "▌"

Place = TypeVar("Place")
"""What names a cell."""


def keys(*rows: tuple[str, str, str, str]) -> list[BindingType]:
    """Bindings that move the cursor: key, action, description, and a name for the user's keymap."""
    return [
        Binding(key, action, description, show=False, id=f"move.{name}")
        for key, action, description, name in rows
    ]


class CellMap(Inked, Generic[Place], can_focus=True, inherit_bindings=False):
    """The visible part of a map. Of the rest nothing is looked at.

    Its first column marks the row of the cursor; the cells' own begin right of it.
    """

    BINDINGS: ClassVar[list[BindingType]] = keys(
        ("up,k", "rows(-1)", "Up", "up"),
        ("down,j", "rows(1)", "Down", "down"),
        ("pageup,ctrl+b", "page(-1)", "Page up", "page-up"),
        ("pagedown,ctrl+f", "page(1)", "Page down", "page-down"),
    )
    LINES_ABOVE: ClassVar[int] = 0
    """Lines that are to stay in sight above the cursor's."""

    class Moved(Message):
        """The cursor is on another cell."""

    def __init__(self, lock: threading.RLock) -> None:
        super().__init__()
        self.lines_rendered = 0
        """How many lines have been drawn; tests hold it down."""
        self._lock = lock
        """Held while anything is looked at that events change."""
        self._drawn: dict[int, Line] = {}

    @property
    @abstractmethod
    def cursor(self) -> Place | None:
        """The cell under the cursor, if there is one."""

    @abstractmethod
    def go_to(self, place: Place) -> None:
        """Put the cursor on a cell, the nearest there is."""

    @abstractmethod
    def _position(self, place: Place) -> tuple[int, int]:
        """The line of a cell, and its column there."""

    @abstractmethod
    def _place_at(self, x: int, y: int) -> Place | None:
        """The cell at column `x` of line `y`, if one is there."""

    @abstractmethod
    def _rows_away(self, place: Place, lines: int) -> Place:
        """The cell so many lines below (above, if negative), as near as there is one."""

    @abstractmethod
    def _cells(self, y: int) -> Line:
        """Line `y` without the cursor."""

    def render_line(self, y: int) -> Strip:
        self.lines_rendered += 1
        with self._lock:
            line = self._look(y + self.scroll_offset.y)
        self._drawn[y] = line
        return self.paint(line, self.size.width)

    def on_click(self, event: events.Click) -> None:
        with self._lock:
            place = self._place_at(event.x - 1, event.y + self.scroll_offset.y)
        if place is not None:
            self.go_to(place)

    def action_rows(self, by: int) -> None:
        if (cursor := self.cursor) is not None:
            self.go_to(self._rows_away(cursor, by))

    def action_page(self, by: int) -> None:
        self.action_rows(by * max(self.size.height - 1, 1))

    def reveal(self) -> None:
        """Scroll no more than it takes to see the cursor."""
        if (cursor := self.cursor) is None:
            return
        line, top, height = self._position(cursor)[0], self.scroll_offset.y, self.size.height
        if line - self.LINES_ABOVE < top:
            self.scroll_to(y=max(line - self.LINES_ABOVE, 0), animate=False)
        elif height and line >= top + height:
            self.scroll_to(y=line - height + 1, animate=False, force=True)

    def refresh_changed(self) -> None:
        """Draw the visible lines that would now look different; call it under the lock."""
        top = self.scroll_offset.y
        for y in range(self.size.height):
            if self._drawn.get(y) != self._look(top + y):
                self.refresh_line(top + y)

    def _look(self, y: int) -> Line:
        """Line `y` as it is drawn."""
        line, cursor = self._cells(y), self.cursor
        if line and cursor is not None:
            cursor_line, column = self._position(cursor)
            if y == cursor_line:
                return ((CURSOR_MARK, "accent"), *with_cursor(line, column))
        return ((" ", PLAIN), *line)
