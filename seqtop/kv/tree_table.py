"""The list of prefix trees, the largest first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from textual.message import Message

from seqtop.kv.block_details import ago, name, preview
from seqtop.kv.cache import Key, PrefixTree
from seqtop.kv.ui_state import KvUiState
from seqtop.text import format as fmt
from seqtop.text.column_layout import UNLIMITED, Column, fit
from seqtop.tui.rendering.list_view import MARGIN, ListView
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted


@dataclass(frozen=True, kw_only=True)
class TreeColumn(Column):
    """A column of the list of prefix trees."""

    cell: Callable[[KvUiState, PrefixTree], StyledText]
    """Draws the cell of a tree; called under the lock of `ui`."""


@lru_cache(maxsize=64)
def arrange(width: int) -> tuple[TreeColumn, ...]:
    """Returns the columns that fit into `width` cells, one cell apart."""
    return fit(COLUMNS, width)


def row(columns: tuple[TreeColumn, ...], ui: KvUiState, tree: PrefixTree) -> Line:
    """Returns the row of one prefix tree. Called under the lock of `ui`."""
    spans: list[StyledText] = []
    for index, column in enumerate(columns):
        text, style = column.cell(ui, tree)
        if index:
            spans.append((" ", PLAIN))
        spans += fitted(((column.aligned(text) if column.right else text, style),), column.width)
    return tuple(spans)


def _start(ui: KvUiState, tree: PrefixTree) -> StyledText:
    first = ui.cache.blocks.get(tree.root)
    if first is None:
        return "its first block is not known to be cached", "alert"
    return preview(ui, first), PLAIN


COLUMNS = (
    TreeColumn(
        key="tree",
        title="",
        width=1,
        priority=0,
        cell=lambda ui, tree: ui.marks.mark(tree.serial),
    ),
    TreeColumn(
        key="blocks",
        title="Blocks",
        width=7,
        priority=0,
        cell=lambda _, tree: (fmt.count(tree.num_blocks), "strong"),
    ),
    TreeColumn(
        key="tokens",
        title="Tokens",
        width=9,
        priority=1,
        cell=lambda _, tree: (fmt.count(tree.num_tokens), "strong"),
    ),
    TreeColumn(
        key="seen",
        title="Seen",
        width=8,
        priority=2,
        cell=lambda ui, tree: (ago(ui, tree.last_named_at), "strong"),
    ),
    TreeColumn(
        key="first",
        title="First block",
        width=11,
        priority=3,
        right=False,
        cell=lambda _, tree: (name(tree.root[1]), "dim"),
    ),
    TreeColumn(
        key="start",
        title="Begins with",
        width=20,
        min_width=1,
        max_width=UNLIMITED,
        priority=0,
        right=False,
        cell=_start,
    ),
)


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
        return row(arrange(self.text_width - MARGIN), self._ui, self._rows[key])
