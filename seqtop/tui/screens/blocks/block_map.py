"""The map of the block pool: a cell for each block, and a cursor on one of them."""

from seqtop.state.block_index import BlockIndex
from seqtop.tui.rendering.block_grid import BlockGrid
from seqtop.tui.rendering.cell_map import CellMap, move_bindings
from seqtop.tui.rendering.owner_marks import OwnerMarks
from seqtop.tui.rendering.style import Line
from seqtop.tui.screens.blocks.cells import BlockTexts, grid, pool_line, pools_of, row_owners
from seqtop.tui.ui_state import Changes, UiState

MAX_LINES = 1_000
"""The most lines of cells that the map keeps."""


class BlockMap(CellMap[int]):
    """The cells of the block pool."""

    BINDINGS = move_bindings(
        ("left,h", "move(-1)", "The block before", "left"),
        ("right,l", "move(1)", "The block after", "right"),
        ("home", "row_end(-1)", "First block of the row", "row-start"),
        ("end", "row_end(1)", "Last block of the row", "row-end"),
        ("g", "pool_end(-1)", "First block of the pool", "first"),
        ("G", "pool_end(1)", "Last block of the pool", "last"),
        ("z", "zoom", "The whole pool, or a cell for every block", "zoom"),
    )

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui.lock)
        self.index = BlockIndex()
        """The index of the last frame."""
        self.block_grid = grid(0, 0, 0, 0)
        """The arrangement of the blocks in the last frame."""
        self._ui = ui
        self._texts = BlockTexts()
        self.marks = OwnerMarks()
        """The letters and the styles of the owners in the last frame."""
        self._lines_of_cells: dict[int, Line] = {}
        """The lines of cells of one column by number."""
        self._row_owners: dict[int, tuple[int | None, ...]] = {}
        """The owners whose styles the cells of a row have, by the number of its first line."""
        self._cached: set[int] = set()
        """The blocks of the prefix cache at the last second."""
        self._lines_for: tuple[BlockGrid, int | None] | None = None
        """The grid and the selected sequence for which they were made."""

    @property
    def cursor(self) -> int:
        """The block under the cursor. Until one is chosen, the selected sequence's first."""
        chosen = self._ui.blocks.block
        if chosen is None:
            selected = self._ui.cursor.seq_id
            chosen = None if selected is None else self.index.first_block(selected)
        return max(0, min(chosen or 0, len(self.index) - 1))

    def show(self, changes: Changes) -> None:
        """Draws changes. Called under the lock of `ui`."""
        before = self.cursor
        self.index = self._ui.blocks.index(self._ui.state)
        changed, before_tick = self._ui.blocks.take_changed(), self._cached
        if changes.ticked:
            self._cached = set(self.index.cached)
        if changed is None or changes.touched is None:
            self._forget_lines()
        else:  # blocks leave the prefix cache without a change of owners, too
            for block in changed | (before_tick ^ self._cached):
                line = self.block_grid.line(block)
                self._lines_of_cells.pop(line, None)
                self._row_owners.pop(line, None)
        pools = pools_of(self.index.num_device, self.index.num_host)
        if changes.touched is None or self.block_grid.pools != pools:
            self._arrange()
        if self.cursor != before:
            self.reveal()
        if self.marks.arrange(map(self._owners_on, self._visible_rows())):
            self._lines_of_cells.clear()
        self.refresh_changed()

    @property
    def cell_size(self) -> tuple[int, int]:
        return self.block_grid.width, self.block_grid.lines

    def visible_owners(self) -> set[int]:
        """Returns the sequences whose styles visible cells have."""
        return {
            owner for y in self._visible_rows() for owner in self._owners_on(y) if owner is not None
        }

    def _visible_rows(self) -> range:
        """Returns the first lines of the visible rows of cells."""
        top, lines = self.scroll_offset.y, self.block_grid.lines
        return range(top - top % lines, top + self.size.height, lines)

    def go_to(self, key: int) -> None:
        with self._ui.lock:
            self._ui.blocks.block = max(0, min(key, len(self.index) - 1))
            self.reveal()
            self.refresh_changed()
        self.post_message(self.Moved())

    def on_resize(self) -> None:
        with self._ui.lock:
            self._arrange()
            self.reveal()
            self.refresh_changed()
        self.post_message(self.Moved())

    def action_move(self, by: int) -> None:
        if self.block_grid.span == 1:
            self.go_to(self.cursor + by)
        elif len(self.index):
            cell = self.block_grid.cell(self.cursor)
            self.go_to(self._first_held(cell.start - 1 if by < 0 else cell.stop))

    @property
    def can_zoom(self) -> bool:
        """True if a cell stands for several blocks, or would."""
        return self.block_grid.span > 1 or self._ui.blocks.single_blocks

    def action_zoom(self) -> None:
        with self._ui.lock:
            if not self.can_zoom:
                self.notify("Every block has a cell of its own.", timeout=2, markup=False)
                return
            self._ui.blocks.single_blocks = not self._ui.blocks.single_blocks
            self._arrange()
            self.reveal()
            self.refresh_changed()
        self.post_message(self.Moved())

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
        if not height:  # before the first layout; nothing would fit, after a long search
            return
        single = self._ui.blocks.single_blocks
        self.block_grid = grid(num_device, num_host, width, height, single=single)
        self.set_height(self.block_grid.height)
        self._forget_lines()

    def _forget_lines(self) -> None:
        self._lines_of_cells.clear()
        self._row_owners.clear()

    def _first_held(self, block: int) -> int:
        """Returns the first block in use of the cell with `block`, or else the cell's first."""
        if self.block_grid.span == 1 or not 0 <= block < len(self.index):
            return block
        blocks = self.block_grid.cell(block)
        return next(filter(self.index.owners, blocks), blocks.start)

    def _position(self, key: int) -> tuple[int, int]:
        return self.block_grid.line(key), self.block_grid.column(key)

    def _key_at(self, x: int, y: int) -> int | None:
        blocks = self.block_grid.cell_at(x, y)
        return None if blocks is None else self._first_held(blocks.start)

    def _rows_away(self, key: int, lines: int) -> int:
        return self._first_held(self.block_grid.moved(key, lines))

    def _cells(self, y: int) -> Line:
        drawn, selected = self.block_grid, self._ui.cursor.seq_id
        if drawn.width > 1:  # such cells show the filled slots, which change at every step
            return self._line_of(y)
        key = drawn, selected
        if self._lines_for != key or len(self._lines_of_cells) > MAX_LINES:
            self._lines_of_cells.clear()
            self._lines_for = key
        line = self._lines_of_cells.get(y)
        if line is None:
            line = self._lines_of_cells[y] = self._line_of(y)
        return line

    def _line_of(self, y: int) -> Line:
        return pool_line(
            self.block_grid,
            self._ui.state,
            self.index,
            y,
            self._ui.cursor.seq_id,
            self._texts,
            self.marks,
        )

    def _owners_on(self, y: int) -> tuple[int | None, ...]:
        """Returns the owners whose styles the cells of the row that begins with line `y` have."""
        y = (
            self.block_grid.line(self.block_grid.blocks(y).start)
            if self.block_grid.blocks(y)
            else y
        )
        owners = self._row_owners.get(y)
        if owners is None:
            if len(self._row_owners) > MAX_LINES:
                self._row_owners.clear()
            owners = self._row_owners[y] = row_owners(self.block_grid, self.index, y)
        return owners
