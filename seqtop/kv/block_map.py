"""The map of hashed blocks: a cell for each, tier by tier, and a cursor on one of them."""

from __future__ import annotations

from seqtop.kv import cells
from seqtop.kv.cache import Key
from seqtop.kv.ui_state import KvUiState
from seqtop.tui.rendering.block_grid import BlockGrid
from seqtop.tui.rendering.cell_map import CellMap, move_bindings
from seqtop.tui.rendering.style import Line


class KvBlockMap(CellMap[int]):
    """The cells of all tiers, numbered across the tiers."""

    BINDINGS = move_bindings(
        ("left,h", "move(-1)", "The cell before", "left"),
        ("right,l", "move(1)", "The cell after", "right"),
        ("home,g", "end(-1)", "First cell", "first"),
        ("end,G", "end(1)", "Last cell", "last"),
    )
    LINES_ABOVE = 1  # for the title above the first row

    def __init__(self, ui: KvUiState) -> None:
        super().__init__(ui.lock)
        self._ui = ui
        self.block_grid = BlockGrid((), 10)
        """The grid of the last frame."""
        self._path: set[Key] = set()

    @property
    def cursor(self) -> int | None:
        """The number of the cell under the cursor; `None` if it is not in the last frame."""
        cursor = self._ui.cursor
        return None if cursor is None else self.block_grid.block(*cursor)

    @property
    def cell_size(self) -> tuple[int, int]:
        return self.block_grid.width, self.block_grid.lines

    def show(self) -> None:
        """Draws the lines that look different. Called under the lock of `ui`."""
        if not self.size:
            return
        block = self._ui.block
        self._path = (
            set() if block is None else {cached.key for cached in self._ui.cache.path(block)}
        )
        width, height = max(self.text_width - 1, 1), self.size.height
        self.block_grid = cells.grid(self._ui.cache.tiers, width, height)
        self.set_height(self.block_grid.height)
        top = self.scroll_offset.y
        visible = range(top, top + height)
        self._ui.marks.arrange(cells.trees(self.block_grid, self._ui.cache, y) for y in visible)
        self.refresh_changed()

    def go_to(self, key: int) -> None:
        with self._ui.lock:
            pool, self._ui.cell = self.block_grid.pool_of(
                max(0, min(key, self.block_grid.num_blocks - 1))
            )
            self._ui.medium = pool.name
            self.show()
            self.reveal()
        self.post_message(self.Moved())

    def on_resize(self) -> None:
        with self._ui.lock:
            self.show()
            self.reveal()

    def action_move(self, by: int) -> None:
        if (cursor := self.cursor) is not None:
            self.go_to(cursor + by)

    def action_end(self, direction: int) -> None:
        if self.block_grid.num_blocks:
            self.go_to(0 if direction < 0 else self.block_grid.num_blocks - 1)

    def _position(self, key: int) -> tuple[int, int]:
        return self.block_grid.line(key), self.block_grid.column(key)

    def _key_at(self, x: int, y: int) -> int | None:
        cell = self.block_grid.cell_at(x, y)
        return None if cell is None else cell.start

    def _rows_away(self, key: int, lines: int) -> int:
        return self.block_grid.moved(key, lines)

    def _cells(self, y: int) -> Line:
        return cells.line(self.block_grid, self._ui.cache, y, self._path, self._ui.marks)
