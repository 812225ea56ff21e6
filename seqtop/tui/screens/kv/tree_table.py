"""The list of prefix trees, the largest first."""

from __future__ import annotations

from collections.abc import Sequence

from textual.message import Message

from seqtop import format as fmt
from seqtop.kv_events.cache import Key, PrefixTree
from seqtop.tui.rendering.line_view import DrawnLine, LineView
from seqtop.tui.rendering.list_view import MARGIN, ListView
from seqtop.tui.rendering.style import PLAIN, Line, fitted
from seqtop.tui.screens.blocks.cells import owner_mark
from seqtop.tui.screens.kv.block_details import ago, name, preview
from seqtop.tui.screens.kv.ui_state import KvUiState

TITLES = f"  {'Blocks':>7} {'Tokens':>9} {'Seen':>8}  {'First block':<11} Begins with"


class TreeTitles(LineView):
    """The titles of the columns."""

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        return [(((" " * MARGIN + TITLES, PLAIN),), "header")]


class TreeRows(ListView):
    """A row per prefix tree. The key of a row is the serial number of its tree."""

    _ui: KvUiState

    class Chosen(Message):
        """The cursor is on another tree."""

    def __init__(self, ui: KvUiState) -> None:
        super().__init__(ui)
        self._ui = ui
        self._root: Key | None = None
        self._rows: dict[int, PrefixTree] = {}

    def show(self) -> None:
        """Draws the lines that look different. Called under the lock of `ui`."""
        self.set_height(self.num_rows)
        self.refresh_changed()

    @property
    def chosen(self) -> PrefixTree | None:
        """The tree under the cursor: the largest, unless the user chose one that still exists."""
        cache = self._ui.cache
        named = None if self._root is None else cache.tree(self._root)
        return named or next(iter(cache.trees(0, 1)), None)

    @property
    def num_rows(self) -> int:
        return self._ui.cache.num_trees

    @property
    def cursor_row(self) -> int | None:
        return None if self.chosen is None else self._ui.cache.rank(self.chosen)

    def page(self, start: int, stop: int) -> Sequence[int]:
        trees = self._ui.cache.trees(start, stop)
        if len(self._rows) > 1_000:
            self._rows.clear()
        self._rows |= {tree.serial: tree for tree in trees}
        return [tree.serial for tree in trees]

    def is_selected(self, key: int) -> bool:
        return self.chosen is not None and self.chosen.serial == key

    def select(self, key: int) -> None:
        with self._ui.lock:
            self._root = self._rows[key].root
            if (row := self.cursor_row) is not None:
                self.reveal(row)
            self.refresh_changed()
        self.post_message(self.Chosen())

    def line(self, key: int) -> Line:
        tree = self._rows[key]
        first = self._ui.cache.blocks.get(tree.root)
        begins: Line = (
            (("its first block is not known to be cached", "alert"),)
            if first is None
            else ((preview(self._ui, first), PLAIN),)
        )
        figures = (
            f" {fmt.count(tree.num_blocks):>7} {fmt.count(tree.num_tokens):>9}"
            f" {ago(self._ui, tree.last_named_at):>8}  "
        )
        line: Line = (
            owner_mark(tree.serial),
            (figures, "strong"),
            (f"{name(tree.root[1]):<11} ", "dim"),
            *begins,
        )
        return fitted(line, max(self.text_width - MARGIN, 1))
