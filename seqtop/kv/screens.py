"""The two screens of KV-cache events: the map of blocks, and the prefix trees."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.widget import Widget

from seqtop.kv import cells
from seqtop.kv.block_details import facts
from seqtop.kv.block_map import KvBlockMap
from seqtop.kv.cache import CachedKvBlock
from seqtop.kv.header import KvHeader, notice_text
from seqtop.kv.tree_table import TreeRows, arrange
from seqtop.kv.ui_state import KvUiState
from seqtop.tui.chrome.notice import Notice
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.list_view import ColumnTitles, header
from seqtop.tui.screens.base import TabbedScreen

WIDE = 140
"""From this width on, the details are shown beside the map."""


class KvScreen(TabbedScreen):
    """A screen of one publisher. A subclass draws its body in `update`."""

    def __init__(self, ui: KvUiState, tabs: Sequence[Tab]) -> None:
        header, notice = KvHeader(ui), Notice(ui, lambda: notice_text(ui))
        super().__init__(tabs, header, notice)
        self.ui = ui
        self._header = header
        self._notice = notice

    def update(self) -> None:
        """Draws the body. Called under the lock of `ui`."""
        raise NotImplementedError

    def show(self) -> None:
        """Draws the lines that look different."""
        with self.ui.lock:
            self._header.update()
            self._notice.update()
            self.update()

    def resume(self) -> None:
        self.show()


class KvBlocksScreen(KvScreen):
    """All cached blocks, and one of them in detail."""

    TAB = Tab("1", "blocks", "Blocks")
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding(
            "left_square_bracket",
            "parent",
            "Parent",
            id="look.parent",
            tooltip="The block before this one in its prefix",
        ),
        Binding(
            "right_square_bracket",
            "child",
            "Child",
            id="look.child",
            tooltip="The block stored last that continues this one",
        ),
        Binding(
            "o",
            "sibling",
            "Sibling",
            id="look.sibling",
            tooltip="Another block that continues the same prefix",
        ),
    ]

    def __init__(self, ui: KvUiState, tabs: Sequence[Tab]) -> None:
        super().__init__(ui, tabs)
        self._map = KvBlockMap(ui)
        self._legend = LineView(id="kv-legend")
        self._facts = LineView(id="kv-facts")

    def body(self) -> Iterable[Widget]:
        blocks = self.panel(
            Vertical(self._legend, self._map, id="kv-map"), self.TAB.title, is_main=True
        )
        keys = {"look.parent": "parent", "look.child": "child", "look.sibling": "sibling"}
        yield Container(blocks, self.panel(self._facts, "Block", keys), id="kv-body")

    def on_mount(self) -> None:
        self._map.focus()

    def size_classes(self, width: int, height: int) -> dict[str, bool]:
        return super().size_classes(width, height) | {"-beside": width >= WIDE}

    def on_resize(self) -> None:
        super().on_resize()
        self.call_after_refresh(self.show)

    def resume(self) -> None:
        super().resume()
        with self.ui.lock:
            self._map.reveal()

    def update(self) -> None:
        self._map.show()
        width = max(self._legend.size.width - 2, 1)
        self._legend.set_lines([((" ", ""), *cells.legend(width, self._map.block_grid))])
        if self._facts.size:
            size = self._facts.text_width, self._facts.size.height
            self._facts.set_lines(facts(self.ui, *size))

    def on_cell_map_moved(self, _: KvBlockMap.Moved) -> None:
        self.show()

    def action_parent(self) -> None:
        with self.ui.lock:
            block = self.ui.block
            before = block and block.parent and self.ui.cache.blocks.get(block.parent)
            self._go(before, "The block before this one is not known to be cached.")

    def action_child(self) -> None:
        with self.ui.lock:
            block = self.ui.block
            after = self.ui.cache.children(block.key) if block else []
            self._go(
                self.ui.cache.blocks[after[-1]] if after else None,
                "No known block continues this one.",
            )

    def action_sibling(self) -> None:
        with self.ui.lock:
            block = self.ui.block
            siblings = self.ui.cache.children(block.parent) if block and block.parent else []
            if block is None or len(siblings) < 2:
                self._go(None, "No other known block continues the same prefix.")
                return
            chosen = siblings[(siblings.index(block.key) + 1) % len(siblings)]
            self._go(self.ui.cache.blocks[chosen], "")

    def _go(self, block: CachedKvBlock | None, failure: str) -> None:
        if block is None:
            self.notify(failure, timeout=2, markup=False)
            return
        self.ui.select(block)
        self.show()
        self._map.reveal()


class KvTreesScreen(KvScreen):
    """The prefix trees. Enter goes to the first block of one on the map."""

    TAB = Tab("2", "trees", "Prefixes")
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("enter", "look", "Blocks", id="look.tree", tooltip="Go to its blocks on the map"),
    ]

    def __init__(self, ui: KvUiState, tabs: Sequence[Tab]) -> None:
        super().__init__(ui, tabs)
        self._rows = TreeRows(ui)

    def body(self) -> Iterable[Widget]:
        titles = ColumnTitles(lambda width: header(arrange(width)))
        yield self.panel(
            Vertical(titles, self._rows, id="kv-trees"),
            self.TAB.title,
            {"look.tree": "its blocks"},
            is_main=True,
        )

    def on_mount(self) -> None:
        self._rows.focus()

    def update(self) -> None:
        self._rows.show()

    def action_look(self) -> None:
        with self.ui.lock:
            tree = self._rows.chosen
            block = None if tree is None else self.ui.cache.member(tree)
            if block is None:
                self.notify("None of its blocks is known to be cached.", timeout=2, markup=False)
                return
            self.ui.select(block)
        self.app.switch_mode(KvBlocksScreen.TAB.name)
