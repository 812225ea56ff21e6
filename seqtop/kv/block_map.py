"""The map of hashed blocks: a cell for each, tier by tier, and a cursor on one of them."""

from __future__ import annotations

from seqtop.kv import cells
from seqtop.kv.cache import Key
from seqtop.kv.cells import KvGrid, Place
from seqtop.kv.ui_state import KvUiState
from seqtop.tui.rendering.cell_map import CellMap, move_bindings
from seqtop.tui.rendering.style import Line


class KvBlockMap(CellMap[Place]):
    """The cells of all tiers."""

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
        self._grid = KvGrid((), 10, 1, 3)
        self._path: set[Key] = set()

    @property
    def cursor(self) -> Place | None:
        place = self._ui.cursor
        return None if place is None else Place(*place)

    def show(self) -> None:
        """Draws the lines that look different. Called under the lock of `ui`."""
        if not self.size:
            return
        block = self._ui.block
        self._path = set() if block is None else {each.key for each in self._ui.cache.path(block)}
        width, height = max(self.text_width - 1, 1), self.size.height
        self._grid = cells.grid(self._ui.cache.tiers, width, height)
        self.set_height(self._grid.starts[-1])
        self.refresh_changed()

    def go_to(self, key: Place) -> None:
        with self._ui.lock:
            self._ui.medium, self._ui.cell = key
            self.show()
            self.reveal()
        self.post_message(self.Moved())

    def on_resize(self) -> None:
        with self._ui.lock:
            self.show()
            self.reveal()

    def action_move(self, by: int) -> None:
        if (cursor := self.cursor) is not None and self._grid.tiers:
            self.go_to(self._grid.stepped(cursor, by))

    def action_end(self, direction: int) -> None:
        if self._grid.tiers:
            medium, num_cells = self._grid.tiers[0 if direction < 0 else -1]
            self.go_to(Place(medium, 0 if direction < 0 else num_cells - 1))

    def _position(self, key: Place) -> tuple[int, int]:
        return self._grid.line(key), self._grid.column(key)

    def _key_at(self, x: int, y: int) -> Place | None:
        return self._grid.place_at(x, y)

    def _rows_away(self, key: Place, lines: int) -> Place:
        return self._grid.moved(key, lines)

    def _cells(self, y: int) -> Line:
        return cells.line(self._grid, self._ui.cache, y, self._path)
