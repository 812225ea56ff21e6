"""The map of the block pool: a cell for each block, a cursor that moves over them."""

from seqtop.state.block_index import BlockIndex
from seqtop.tui.rendering.cell_map import CellMap, keys
from seqtop.tui.rendering.style import Line
from seqtop.tui.screens.blocks.cells import BlockGrid, cursor_column, grid, pool_line
from seqtop.tui.ui_state import Changes, UiState


class BlockMap(CellMap[int]):
    """The cells of the pool. Only lines with a block that changed hands are made anew."""

    BINDINGS = keys(
        ("left,h", "move(-1)", "The block before", "left"),
        ("right,l", "move(1)", "The block after", "right"),
        ("home", "row_end(-1)", "First block of the row", "row-start"),
        ("end", "row_end(1)", "Last block of the row", "row-end"),
        ("g", "pool_end(-1)", "First block of the pool", "first"),
        ("G", "pool_end(1)", "Last block of the pool", "last"),
    )

    def __init__(self, feed: UiState) -> None:
        super().__init__(feed.lock)
        self.index = BlockIndex()
        self.lines_made = 0
        """How many lines have been made from the index; tests hold it down."""
        self._feed = feed
        self._grid = BlockGrid(0, 0, 10, 1, 2)
        self._lines: dict[int, tuple[Line, set[int], set[int]]] = {}
        """Lines as they would be without a cursor, the sequences that hold blocks there, and the
        blocks there that the prefix cache knows."""
        self._selected: int | None = None

    @property
    def cursor(self) -> int:
        """The block under the cursor. Until one is chosen, the selected sequence's first."""
        chosen = self._feed.block
        if chosen is None:
            selected = self._feed.selected
            chosen = None if selected is None else self.index.first_block(selected)
        return max(0, min(chosen or 0, len(self.index) - 1))

    def show(self, frame: Changes) -> None:
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
            self.reveal()
        self.redraw()

    def redraw(self) -> None:
        """Refresh the visible lines that would now look different."""
        if not self.size:
            return
        if self._selected != self._feed.selected:
            self._selected = self._feed.selected
            self._lines.clear()
        if len(self._lines) > 4 * max(self.size.height, 64):
            self._lines.clear()
        self.refresh_changed()

    def in_sight(self) -> set[int]:
        """The sequences that hold visible blocks."""
        top = self.scroll_offset.y
        return set().union(*(self._line(top + y)[1] for y in range(self.size.height)))

    def go_to(self, place: int) -> None:
        with self._feed.lock:
            self._feed.block = max(0, min(place, len(self.index) - 1))
            self.reveal()
            self.redraw()
        self.post_message(self.Moved())

    def on_resize(self) -> None:
        with self._feed.lock:
            self._lines.clear()
            self._drawn.clear()
            self._arrange()
            self.reveal()

    def action_move(self, by: int) -> None:
        self.go_to(self.cursor + by)

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

    def _position(self, place: int) -> tuple[int, int]:
        return self._grid.line(place), cursor_column(self._grid, place)

    def _place_at(self, x: int, y: int) -> int | None:
        return self._grid.block_at(x, y)

    def _rows_away(self, place: int, lines: int) -> int:
        return self._grid.moved(place, lines)

    def _cells(self, y: int) -> Line:
        return self._line(y)[0]

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
