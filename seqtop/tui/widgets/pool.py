"""The map of the block pool: a cell for each block, a cursor that moves over them."""

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.strip import Strip

from seqtop.state.block_map import BlockMap
from seqtop.tui.feed import Feed, Frame
from seqtop.tui.ink import PLAIN, Inked, Line
from seqtop.tui.widgets.pool_cells import Grid, cursor_column, grid, pool_line, with_cursor

CURSOR_MARK = "▌"


class PoolMap(Inked, can_focus=True, inherit_bindings=False):
    """The visible part of the pool. Only lines with a block that changed hands are made anew."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding(key, action, description, show=False, id=f"move.{name}")
        for key, action, description, name in (
            ("left,h", "move(-1)", "The block before", "left"),
            ("right,l", "move(1)", "The block after", "right"),
            ("up,k", "rows(-1)", "Up", "up"),
            ("down,j", "rows(1)", "Down", "down"),
            ("pageup,ctrl+b", "page(-1)", "Page up", "page-up"),
            ("pagedown,ctrl+f", "page(1)", "Page down", "page-down"),
            ("home", "row_end(-1)", "First block of the row", "row-start"),
            ("end", "row_end(1)", "Last block of the row", "row-end"),
            ("g", "pool_end(-1)", "First block of the pool", "first"),
            ("G", "pool_end(1)", "Last block of the pool", "last"),
        )
    ]

    class Moved(Message):
        """The cursor is on another block."""

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self.index = BlockMap()
        self.lines_rendered = 0
        """How many lines have been drawn; tests hold it down."""
        self.lines_made = 0
        """How many have been made from the index; the same."""
        self._feed = feed
        self._grid = Grid(0, 0, 10, 1, 2)
        self._lines: dict[int, tuple[Line, set[int], set[int]]] = {}
        """Lines as they would be without a cursor, the sequences that hold blocks there, and the
        blocks there that the prefix cache knows."""
        self._selected: int | None = None
        self._drawn: dict[int, Line] = {}

    @property
    def cursor(self) -> int:
        """The block under the cursor. Until one is chosen, the selected sequence's first."""
        chosen = self._feed.block
        if chosen is None:
            selected = self._feed.selected
            chosen = None if selected is None else self.index.first_block(selected)
        return max(0, min(chosen or 0, len(self.index) - 1))

    def show(self, frame: Frame) -> None:
        """Draw what `frame` changed; call it under the feed's lock."""
        before = self.cursor
        state = self._feed.state
        if frame.touched is None or not self.index.fits(state):
            self.index.rebuild(state)
            self._lines.clear()
            self._arrange()
        else:
            for block in self.index.update(state, frame.touched):
                self._lines.pop(self._grid.line(block), None)
            self._drop_stale()
        if self.cursor != before:
            self._reveal()
        self.redraw()

    def redraw(self) -> None:
        """Refresh the visible lines that would now look different."""
        if not self.size:
            return
        if self._selected != self._feed.selected:
            self._selected = self._feed.selected
            self._lines.clear()
        top = self.scroll_offset.y
        if len(self._lines) > 4 * max(self.size.height, 64):
            self._lines.clear()
        for y in range(self.size.height):
            if self._drawn.get(y) != self._look(top + y):
                self.refresh_line(top + y)

    def in_sight(self) -> set[int]:
        """The sequences that hold visible blocks."""
        top = self.scroll_offset.y
        return set().union(*(self._line(top + y)[1] for y in range(self.size.height)))

    def go_to(self, block: int) -> None:
        """Put the cursor on a block, the nearest there is."""
        with self._feed.lock:
            self._feed.block = max(0, min(block, len(self.index) - 1))
            self._reveal()
            self.redraw()
        self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        self.lines_rendered += 1
        with self._feed.lock:
            line = self._look(y + self.scroll_offset.y)
        self._drawn[y] = line
        return self.paint(line, self.size.width)

    def on_resize(self) -> None:
        with self._feed.lock:
            self._lines.clear()
            self._drawn.clear()
            self._arrange()
            self._reveal()

    def on_click(self, event: events.Click) -> None:
        with self._feed.lock:
            block = self._grid.block_at(event.x - 1, event.y + self.scroll_offset.y)
        if block is not None:
            self.go_to(block)

    def action_move(self, by: int) -> None:
        self.go_to(self.cursor + by)

    def action_rows(self, by: int) -> None:
        self.go_to(self._grid.moved(self.cursor, by))

    def action_page(self, by: int) -> None:
        self.action_rows(by * max(self.size.height - 1, 1))

    def action_row_end(self, direction: int) -> None:
        blocks = self._grid.blocks(self._grid.line(self.cursor))
        if blocks:
            self.go_to(blocks[0 if direction < 0 else -1])

    def action_pool_end(self, direction: int) -> None:
        self.go_to(0 if direction < 0 else len(self.index) - 1)

    def _arrange(self) -> None:
        """Lay the grid out anew, if the pools or the place for them have changed."""
        num_device, num_host = self.index.num_device, self.index.num_host
        width, height = max(self.text_width - 1, 1), self.size.height
        self._grid = grid(num_device, num_host, width, height)
        self.set_height(self._grid.height)

    def _reveal(self) -> None:
        line, top, height = self._grid.line(self.cursor), self.scroll_offset.y, self.size.height
        if line < top:
            self.scroll_to(y=line, animate=False)
        elif height and line >= top + height:
            self.scroll_to(y=line - height + 1, animate=False)

    def _look(self, y: int) -> Line:
        """Line `y` as it is drawn."""
        line, *_ = self._line(y)
        cursor = self.cursor
        if not len(self.index) or y != self._grid.line(cursor):
            return ((" ", PLAIN), *line)
        return (
            (CURSOR_MARK, "accent"),
            *with_cursor(line, cursor_column(self._grid, cursor)),
        )

    def _drop_stale(self) -> None:
        """Forget lines on which the prefix cache knows other blocks now; costs what is in sight."""
        for y, (_, _, cached) in list(self._lines.items()):
            if cached != self._cached(y):
                del self._lines[y]

    def _cached(self, y: int) -> set[int]:
        known = self.index.cached
        return {block for block in self._grid.blocks(y) if block in known} if known else set()

    def _line(self, y: int) -> tuple[Line, set[int], set[int]]:
        found = self._lines.get(y)
        if found is None:
            self.lines_made += 1
            line = pool_line(self._grid, self.index, y, self._selected)
            blocks = self._grid.blocks(y)
            holders = {seq_id for block in blocks for seq_id in self.index.owners(block)}
            found = self._lines[y] = line, holders, self._cached(y)
        return found
