"""The map of hashed blocks: a cell for each, tier by tier, and a cursor that moves over them."""

from __future__ import annotations

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.strip import Strip

from seqtop.state.kv_cache import Key
from seqtop.tui.ink import PLAIN, Inked, Line
from seqtop.tui.kv import cells
from seqtop.tui.kv.cells import Grid, Place
from seqtop.tui.kv.feed import KvFeed
from seqtop.tui.widgets.pool_cells import with_cursor

CURSOR_MARK = "▌"


class KvMap(Inked, can_focus=True, inherit_bindings=False):
    """The visible part of all tiers. Of the others nothing is looked at."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding(key, action, description, show=False, id=f"move.{name}")
        for key, action, description, name in (
            ("left,h", "move(-1)", "The cell before", "left"),
            ("right,l", "move(1)", "The cell after", "right"),
            ("up,k", "rows(-1)", "Up", "up"),
            ("down,j", "rows(1)", "Down", "down"),
            ("pageup,ctrl+b", "page(-1)", "Page up", "page-up"),
            ("pagedown,ctrl+f", "page(1)", "Page down", "page-down"),
            ("home,g", "end(-1)", "First cell", "first"),
            ("end,G", "end(1)", "Last cell", "last"),
        )
    ]

    class Moved(Message):
        """The cursor is on another cell."""

    def __init__(self, feed: KvFeed) -> None:
        super().__init__()
        self.lines_rendered = 0
        """How many lines have been drawn; tests hold it down."""
        self._feed = feed
        self._grid = Grid((), 10, 1, 3)
        self._path: set[Key] = set()
        self._drawn: dict[int, Line] = {}

    @property
    def cursor(self) -> Place | None:
        place = self._feed.cursor
        return None if place is None else Place(*place)

    def show(self) -> None:
        """Draw what has changed; call it under the feed's lock."""
        if not self.size:
            return
        block = self._feed.block
        self._path = set() if block is None else {each.key for each in self._feed.cache.path(block)}
        width, height = max(self.text_width - 1, 1), self.size.height
        self._grid = cells.grid(self._feed.cache.tiers, width, height)
        self.set_height(self._grid.starts[-1])
        top = self.scroll_offset.y
        for y in range(top, top + height):
            if self._drawn.get(y - top) != self._look(y):
                self.refresh_line(y)

    def reveal(self) -> None:
        """Scroll no more than it takes to see the cursor, and the title above the first row."""
        if (cursor := self.cursor) is None:
            return
        line, top, height = self._grid.line(cursor), self.scroll_offset.y, self.size.height
        if line <= top:
            self.scroll_to(y=max(line - 1, 0), animate=False)
        elif height and line >= top + height:
            self.scroll_to(y=line - height + 1, animate=False, force=True)

    def go_to(self, place: Place) -> None:
        with self._feed.lock:
            self._feed.medium, self._feed.cell = place
            self.show()
            self.reveal()
        self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        self.lines_rendered += 1
        with self._feed.lock:
            line = self._look(y + self.scroll_offset.y)
        self._drawn[y] = line
        return self.paint(line, self.size.width)

    def on_resize(self) -> None:
        with self._feed.lock:
            self.show()
            self.reveal()

    def on_click(self, event: events.Click) -> None:
        with self._feed.lock:
            place = self._grid.place_at(event.x - 1, event.y + self.scroll_offset.y)
        if place is not None:
            self.go_to(place)

    def action_move(self, by: int) -> None:
        if (cursor := self.cursor) is not None and self._grid.tiers:
            self.go_to(self._grid.stepped(cursor, by))

    def action_rows(self, by: int) -> None:
        if (cursor := self.cursor) is not None:
            self.go_to(self._grid.moved(cursor, by))

    def action_page(self, by: int) -> None:
        self.action_rows(by * max(self.size.height - 1, 1))

    def action_end(self, direction: int) -> None:
        if self._grid.tiers:
            medium, num_cells = self._grid.tiers[0 if direction < 0 else -1]
            self.go_to(Place(medium, 0 if direction < 0 else num_cells - 1))

    def _look(self, y: int) -> Line:
        """Line `y` as it is drawn."""
        line = cells.line(self._grid, self._feed.cache, y, self._path)
        cursor = self.cursor
        if cursor is None or y != self._grid.line(cursor):
            return ((" ", PLAIN), *line)
        return ((CURSOR_MARK, "accent"), *with_cursor(line, self._grid.column(cursor)))
