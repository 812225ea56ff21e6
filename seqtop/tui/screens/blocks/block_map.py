"""The map of the block pool: a cell for each block, and a cursor on one of them."""

from seqtop.state.block_index import BlockIndex
from seqtop.tui.rendering.cell_map import CellMap, move_bindings
from seqtop.tui.rendering.style import Line
from seqtop.tui.screens.blocks.cells import BlockGrid, cursor_column, grid, pool_line
from seqtop.tui.ui_state import Changes, UiState


class BlockMap(CellMap[int]):
    """The cells of the block pool."""

    BINDINGS = move_bindings(
        ("left,h", "move(-1)", "The block before", "left"),
        ("right,l", "move(1)", "The block after", "right"),
        ("home", "row_end(-1)", "First block of the row", "row-start"),
        ("end", "row_end(1)", "Last block of the row", "row-end"),
        ("g", "pool_end(-1)", "First block of the pool", "first"),
        ("G", "pool_end(1)", "Last block of the pool", "last"),
    )

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui.lock)
        self.index = BlockIndex()
        """The index of the last frame."""
        self.block_grid = BlockGrid(0, 0, 10, 1, 2)
        """The arrangement of the blocks in the last frame."""
        self._ui = ui

    @property
    def cursor(self) -> int:
        """The block under the cursor. Until one is chosen, the selected sequence's first."""
        chosen = self._ui.block
        if chosen is None:
            selected = self._ui.selected
            chosen = None if selected is None else self.index.first_block(selected)
        return max(0, min(chosen or 0, len(self.index) - 1))

    def show(self, changes: Changes) -> None:
        """Draws the changes of a changes. Called under the lock of `ui`."""
        before = self.cursor
        self.index = self._ui.block_index()
        if changes.touched is None or not self.block_grid.fits(self.index):
            self._arrange()
        if self.cursor != before:
            self.reveal()
        self.refresh_changed()

    def visible_owners(self) -> set[int]:
        """Returns the sequences that hold visible blocks."""
        top = self.scroll_offset.y
        lines = range(top, top + self.size.height)
        return {
            seq_id
            for y in lines
            for block in self.block_grid.blocks(y)
            for seq_id in self.index.owners(block)
        }

    def go_to(self, key: int) -> None:
        with self._ui.lock:
            self._ui.block = max(0, min(key, len(self.index) - 1))
            self.reveal()
            self.refresh_changed()
        self.post_message(self.Moved())

    def on_resize(self) -> None:
        with self._ui.lock:
            self._arrange()
            self.reveal()

    def action_move(self, by: int) -> None:
        self.go_to(self.cursor + by)

    def action_row_end(self, direction: int) -> None:
        blocks = self.block_grid.blocks(self.block_grid.line(self.cursor))
        if blocks:
            self.go_to(blocks[0 if direction < 0 else -1])

    def action_pool_end(self, direction: int) -> None:
        self.go_to(0 if direction < 0 else len(self.index) - 1)

    def _arrange(self) -> None:
        """Lays out the grid for the sizes of the pools and of the widget."""
        num_device, num_host = self.index.num_device, self.index.num_host
        width, height = max(self.text_width - 1, 1), self.size.height
        self.block_grid = grid(num_device, num_host, width, height)
        self.set_height(self.block_grid.height)

    def _position(self, key: int) -> tuple[int, int]:
        return self.block_grid.line(key), cursor_column(self.block_grid, key)

    def _key_at(self, x: int, y: int) -> int | None:
        return self.block_grid.block_at(x, y)

    def _rows_away(self, key: int, lines: int) -> int:
        return self.block_grid.moved(key, lines)

    def _cells(self, y: int) -> Line:
        return pool_line(self.block_grid, self.index, y, self._ui.selected)
