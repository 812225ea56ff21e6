"""A map of cells with a cursor on one of them: the base of all maps of blocks."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, Generic, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from seqtop.tui.rendering.line_view import DrawnLine, LineView
from seqtop.tui.rendering.list_view import CURSOR_MARK
from seqtop.tui.rendering.style import PLAIN, Line, StyledText

GROUP = 10
"""The cells from one gap to the next, so that tens can be counted."""
EDGE = "▀"
"""The last line of a high cell: it leaves half a line between a cell and the one below."""
_SIDES = " ─"
"""The signs on the first line of a cell that an outline replaces."""
LEAST_OUTLINED_WIDTH, LEAST_OUTLINED_LINES = 6, 3
"""The size of a cell from which on it may have an outline."""
_REVERSED = {"█": "■", "▓": "≡", EDGE: "▄"}
"""Replacements under the cursor: in reverse video these signs would be blank, or the wrong half."""

OUTLINE = (("─", "╮", "│", "╰", "╯"), "selected-edge")
"""The sides and corners of an outline, and its style. The upper left corner has the cell's sign."""
OUTLINED = ("□", "selected-edge")
"""The sign in a legend for cells with an outline."""
CURSOR_OUTLINE = (("━", "┓", "┃", "┗", "┛"), "accent")

CellKey = TypeVar("CellKey")


def move_bindings(*rows: tuple[str, str, str, str]) -> list[BindingType]:
    """Returns bindings that move the cursor.

    Args:
        rows: For each binding its key, action, description, and name in the user's keymap.
    """
    return [
        Binding(key, action, description, show=False, id=f"move.{name}")
        for key, action, description, name in rows
    ]


class CellMap(LineView, Generic[CellKey], can_focus=True, inherit_bindings=False):
    """Rows of cells. Only the visible lines are made.

    The first column marks the row with the cursor. The columns of the cells begin right of it.
    """

    BINDINGS: ClassVar[list[BindingType]] = move_bindings(
        ("up,k", "rows(-1)", "Up", "up"),
        ("down,j", "rows(1)", "Down", "down"),
        ("pageup,ctrl+b", "page(-1)", "Page up", "page-up"),
        ("pagedown,ctrl+f", "page(1)", "Page down", "page-down"),
    )
    LINES_ABOVE: ClassVar[int] = 0
    """The number of lines above the cursor's line that stay visible."""

    class Moved(Message):
        """The cursor is on another cell."""

    def __init__(self, lock: threading.RLock) -> None:
        super().__init__()
        self._lock = lock
        """Protects the data that the cells are made from."""

    @property
    @abstractmethod
    def cursor(self) -> CellKey | None:
        """The cell under the cursor; `None` if there are no cells."""

    @property
    def cell_size(self) -> tuple[int, int]:
        """The columns and the lines of a cell."""
        return 1, 1

    @abstractmethod
    def go_to(self, key: CellKey) -> None:
        """Puts the cursor on a cell, or on the nearest cell that exists."""

    @abstractmethod
    def _position(self, key: CellKey) -> tuple[int, int]:
        """Returns the first line and the first column of a cell."""

    @abstractmethod
    def _key_at(self, x: int, y: int) -> CellKey | None:
        """Returns the cell at column `x` of line `y`."""

    @abstractmethod
    def _rows_away(self, key: CellKey, lines: int) -> CellKey:
        """Returns the cell `lines` below (above, if negative), or the nearest that exists."""

    @abstractmethod
    def _cells(self, y: int) -> Line:
        """Returns line `y` without the cursor."""

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        with self._lock:
            return [(self._line(y), PLAIN) for y in range(top, top + count)]

    def on_click(self, event: events.Click) -> None:
        with self._lock:
            key = self._key_at(event.x - 1, event.y + self.scroll_offset.y)
        if key is not None:
            self.go_to(key)

    def action_rows(self, by: int) -> None:
        if (cursor := self.cursor) is not None:
            self.go_to(self._rows_away(cursor, by))

    def action_page(self, by: int) -> None:
        self.action_rows(by * max(self.size.height - 1, 1))

    def reveal(self) -> None:
        """Scrolls to the cursor, if it is not visible."""
        if (cursor := self.cursor) is None:
            return
        line, top, height = self._position(cursor)[0], self.scroll_offset.y, self.size.height
        last = line + self.cell_size[1] - 1
        if line - self.LINES_ABOVE < top:
            self.scroll_to(y=max(line - self.LINES_ABOVE, 0), animate=False)
        elif height and last >= top + height:
            self.scroll_to(y=last - height + 1, animate=False, force=True)

    def _line(self, y: int) -> Line:
        line, cursor = self._cells(y), self.cursor
        if line and cursor is not None:
            cursor_line, column = self._position(cursor)
            width, height = self.cell_size
            if cursor_line <= y < cursor_line + height:
                if has_room_for_outline(width, height):
                    part = y - cursor_line
                    line = outlined(line, column, width, part, height, *CURSOR_OUTLINE)
                else:
                    line = with_cursor(line, column, width)
                return ((CURSOR_MARK, "accent"), *line)
        return ((" ", PLAIN), *line)


def cell_row(label: str, cells: Iterable[Line]) -> Line:
    """Returns a line of a row of cells: its label, then the cells in groups.

    Args:
        label: The text before the first cell.
        cells: This line of each cell, with the gap after it.
    """
    spans: list[StyledText] = [(label, "dim")]
    for column, cell in enumerate(cells):
        if column and column % GROUP == 0:
            spans.append((" ", PLAIN))
        for text, style in cell:
            if spans[-1][1] == style:
                spans[-1] = (spans[-1][0] + text, style)
            else:
                spans.append((text, style))
    return tuple(spans)


def has_room_for_outline(width: int, lines: int) -> bool:
    """Returns whether a cell of that size stays readable inside of an outline."""
    return width >= LEAST_OUTLINED_WIDTH and lines >= LEAST_OUTLINED_LINES


def outlined(
    line: Line,
    x: int,
    width: int,
    part: int,
    num_parts: int,
    signs: tuple[str, str, str, str, str],
    style: str,
) -> Line:
    """Returns a line of cells with its part of an outline around the cell at column `x`.

    Args:
        line: The line.
        x: The first column of the cell.
        width: The columns of the cell.
        part: The number of the line in the cell.
        num_parts: The lines of the cell.
        signs: The sides and corners, as in `OUTLINE`. On the first line of a cell, the side is
            drawn where nothing stands.
        style: The style of the outline.
    """
    side, upper_right, upright, lower_left, lower_right = signs
    is_first, is_last = part == 0, part == num_parts - 1
    spans: list[StyledText] = []
    at = 0
    for text, own_style in line:
        for sign in text:
            drawn, drawn_style = sign, own_style
            if at == x and not is_first:
                drawn = lower_left if is_last else upright
            elif at == x + width - 1:
                drawn = upper_right if is_first else lower_right if is_last else upright
            elif x < at < x + width and (is_last or (is_first and sign in _SIDES)):
                drawn = side
            if drawn != sign or (x < at < x + width and is_first):
                drawn_style = style
            if spans and spans[-1][1] == drawn_style:
                spans[-1] = (spans[-1][0] + drawn, drawn_style)
            else:
                spans.append((drawn, drawn_style))
            at += 1
    return tuple(spans)


def with_cursor(line: Line, x: int, width: int = 1) -> Line:
    """Returns `line` with `width` cells from column `x` in the style of the cursor."""
    spans: list[StyledText] = []
    at = 0
    for text, style in line:
        start, end = (min(max(edge - at, 0), len(text)) for edge in (x, x + width))
        cursor = "".join(_REVERSED.get(sign, sign) for sign in text[start:end])
        spans += [(text[:start], style), (cursor, "marked"), (text[end:], style)]
        at += len(text)
    return tuple(span for span in spans if span[0])
