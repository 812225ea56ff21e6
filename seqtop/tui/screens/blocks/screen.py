"""The block map: all blocks of the KV cache and their owners, or the prefix cache's misses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.message import Message
from textual.widget import Widget

from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.tui import seek
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens.blocks import TAB
from seqtop.tui.screens.blocks.block_details import (
    cell_facts,
    facts,
    names,
    owner_table,
    unheld_word,
)
from seqtop.tui.screens.blocks.block_map import BlockMap
from seqtop.tui.screens.blocks.cells import legend, summary
from seqtop.tui.screens.blocks.misses_panel import Admissions, about, titles
from seqtop.tui.screens.blocks.misses_panel import summary as misses_summary
from seqtop.tui.screens.engine_screen import EngineScreen
from seqtop.tui.ui_state import Changes, UiState

WIDE = 140
"""From this width on, the details are shown beside the map."""


_WIDE_LEGEND = 100
"""From this width of the legend on, it says how much of the slots is unfilled."""

TALL = 30
"""From this height on, the causes and the curve of the misses have all the lines that they need."""


class Facts(LineView):
    """The lines about a block, made anew when the width has changed."""

    def __init__(self, update: Callable[[], None]) -> None:
        super().__init__(id="pool-facts")
        self._update = update

    def on_resize(self) -> None:
        self._update()


class BlocksScreen(EngineScreen):
    """The map of all blocks, and one block in detail; or the misses of the prefix cache."""

    class MissesOpened(Message):
        """The misses were opened, so the history has to be read."""

    TAB = TAB
    WORDS = (
        ("used", "blocks in the block table of a sequence"),
        ("freed late", "used blocks in no table, which the steps in flight may still write"),
        ("shared", "blocks in several tables (≡)"),
        ("saved by sharing", "blocks more that the tables would need without sharing"),
        ("slots unfilled", "room for tokens in used blocks"),
        ("free", "blocks that hold nothing of use"),
        ("cached", "unused blocks whose prefix can be found until they are evicted (°)"),
        ("free or cached", "either; the engine does not say which of them"),
        ("swapped out", "blocks of waiting sequences, in host memory (⇄)"),
        ("logical block", "the position of a block in the table of its owner"),
        ("reference", "a block table that has the block"),
    )
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("enter", "show_owner", "Owner", id="look.owner", tooltip="Go to the block's owner"),
        Binding(
            "o",
            "next_owner",
            "Select",
            id="look.next-owner",
            tooltip="Select the block's owner; if it has several, the next of them",
        ),
        Binding(
            "m",
            "misses",
            "Misses",
            id="look.misses",
            tooltip="Show the misses of the prefix cache instead of the map, or the map again",
        ),
        Binding(
            "less_than_sign",
            "next_block(-1)",
            "The selected sequence's block before",
            show=False,
            id="look.block-before",
        ),
        Binding(
            "greater_than_sign",
            "next_block(1)",
            "The selected sequence's block after",
            show=False,
            id="look.block-after",
        ),
    ]

    def __init__(self, ui: UiState, *, title: str, tabs: Sequence[Tab]) -> None:
        super().__init__(ui, title=title, tabs=tabs)
        self._pool = BlockMap(ui)
        self._map_keys = {
            "screen.block": "go to",
            "look.next-owner": "owner",
            "look.block-before look.block-after": "its blocks",
        }
        self._legend = LineView(id="pool-legend")
        self._facts = Facts(self._update_facts)
        self._misses_summary = LineView(id="misses-summary")
        self._misses_titles = LineView(id="misses-titles")
        self._admissions = Admissions(ui)
        self._misses_about = LineView(id="misses-about")

    def body(self) -> Iterable[Widget]:
        pool = self.panel(
            Vertical(self._legend, self._pool, id="pool"),
            TAB.title,
            self._map_keys,
            is_main=True,
        )
        yield Container(pool, self.panel(self._facts, "Block"), id="pool-body")
        misses = Vertical(
            self._misses_summary,
            self._misses_titles,
            self._admissions,
            self._misses_about,
            id="misses",
        )
        yield self.panel(misses, "Prefix cache", {"look.misses": "map"}, is_main=True)

    def on_mount(self) -> None:
        self._pool.focus()

    def size_classes(self, width: int, height: int) -> dict[str, bool]:
        own = {"-beside": width >= WIDE, "-low": height < TALL}
        return super().size_classes(width, height) | own

    def on_resize(self) -> None:
        super().on_resize()
        self.call_after_refresh(self.show_all)

    def update(self, changes: Changes) -> None:
        if (pending := self.ui.take_pending_selection()) is not None:
            self.ui.cursor.seq_id, self.ui.cursor.set_by_user = pending, True
        if self.ui.misses.are_shown != self.has_class("-misses"):
            self._show_parts()
        if self.ui.misses.are_shown:
            self._update_misses()
            return
        self._pool.show(changes)
        if self._pool.can_zoom != ("move.zoom" in self._map_keys):
            if self._pool.can_zoom:
                self._map_keys["move.zoom"] = "one cell a block"
            else:
                del self._map_keys["move.zoom"]
            self._show_keys()
        self._update_details()

    def cursor_text(self) -> str:
        if self.ui.misses.are_shown:
            return self._admissions.cursor_text()
        last = len(self._pool.index) - 1
        return f"block {fmt.count(self._pool.cursor)} of 0 to {fmt.count(last)}" if last > 0 else ""

    def resume(self) -> None:
        self._show_parts()
        super().resume()

    def on_admissions_moved(self, _: Admissions.Moved) -> None:
        with self.ui.lock:
            self._describe_admission()
            self.show_place()

    def action_misses(self) -> None:
        self.ui.misses.are_shown = not self.ui.misses.are_shown
        self.show_all()

    def _show_parts(self) -> None:
        """Shows the map or the misses."""
        are_shown = self.ui.misses.are_shown
        self.set_class(are_shown, "-misses")
        (self._admissions if are_shown else self._pool).focus()
        if are_shown:
            self.post_message(self.MissesOpened())
        # What was hidden has its size after the next layout.
        self.call_after_refresh(self.call_after_refresh, self.show_all)

    def _update_misses(self) -> None:
        reader = self.ui.misses.reader
        if reader is None:
            return
        position = self.ui.time_travel.position
        totals = reader.totals(position)
        size = self._misses_summary.size
        lines = misses_summary(
            reader,
            totals,
            position,
            width=max(self._misses_summary.text_width - 1, 1),
            height=max(size.height, 1),
        )
        self._misses_summary.set_lines([((" ", ""), *line) for line in lines])
        self._misses_titles.set_lines([titles(self._misses_titles.text_width)])
        self._admissions.show(reader.until(position))
        self._describe_admission()

    def _describe_admission(self) -> None:
        width = max(self._misses_about.text_width - 2, 1)
        lines = about(self._admissions.selected, width)
        self._misses_about.set_lines([((" ", ""), *line) for line in lines])

    def on_cell_map_moved(self, _: BlockMap.Moved) -> None:
        with self.ui.lock:
            self._update_details()
            self.show_place()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Returns whether a key has a use: those of the map have none while misses are shown."""
        is_of_map = action in ("next_owner", "next_block")
        return not (is_of_map and self.ui.misses.are_shown)

    def action_next_owner(self) -> None:
        with self.ui.lock:
            owners = list(self._pool.index.owners(self._pool.cursor))
            if not owners:
                known = self._pool.index.cached.get(self._pool.cursor)
                writer = f"; {safe_line(known.request_id)} wrote it" if known else ""
                self.notify(f"No sequence holds this block{writer}.", timeout=2, markup=False)
                return
            here = owners.index(self.ui.cursor.seq_id) if self.ui.cursor.seq_id in owners else -1
            self._select(owners[(here + 1) % len(owners)])

    def action_show_owner(self) -> None:
        if self.ui.misses.are_shown:
            self._show_admission()
            return
        with self.ui.lock:
            if self.ui.cursor.seq_id not in self._pool.index.owners(self._pool.cursor):
                self.action_next_owner()
            if self.ui.cursor.seq_id not in self._pool.index.owners(self._pool.cursor):
                return
        self.app.switch_mode("sequences")

    def _show_admission(self) -> None:
        """Goes to the step of the admission under the cursor, and selects its sequence."""
        lookup = self._admissions.selected
        if lookup is None:
            return
        with self.ui.lock:
            self.ui.time_travel.go(seek.to_position(lookup.position), "")
            self.ui.update(redraw=True)
            if lookup.seq_id in self.ui.state.sequences:
                self.ui.select(lookup.seq_id)
        self.app.switch_mode("sequences")

    def action_next_block(self, by: int) -> None:
        with self.ui.lock:
            selected = self.ui.cursor.seq_id
            blocks = [] if selected is None else self._pool.index.blocks(selected)
            if not blocks:
                self.notify("The selected sequence holds no blocks.", timeout=2, markup=False)
                return
            cursor = self._pool.cursor
            here = blocks.index(cursor) + by if cursor in blocks else 0
            self._pool.go_to(blocks[here % len(blocks)])

    def _select(self, seq_id: int) -> None:
        self.ui.blocks.block = self._pool.cursor  # the cursor stays on the block
        self.ui.select(seq_id)
        self._pool.refresh_changed()
        self._update_details()

    def _update_details(self) -> None:
        """Updates the details of the block under the cursor, and the legend."""
        state, index = self.ui.state, self._pool.index
        width = max(self._legend.size.width - 2, 1)
        stats = state.stats
        is_counted = stats is None or stats.num_cached_blocks is not None
        slots = stats.num_used_blocks * state.info.block_size if stats and state.info else 0
        unfilled = "slots unfilled"
        if slots and width >= _WIDE_LEGEND:
            unfilled += f", {fmt.percent(index.num_unfilled, slots)}"
            if state.info is not None and state.info.bytes_per_block:
                num_bytes = index.num_unfilled * state.info.bytes_per_block / state.info.block_size
                unfilled += f", {fmt.size(num_bytes)}"
        counts = {
            "used": stats.num_used_blocks if stats else None,
            "freed late": (stats.num_late_blocks or None) if stats else None,
            "shared": index.num_shared,
            "swapped out": index.num_swapped if index.num_host else None,
            "free in host memory": stats.num_free_cpu_blocks if stats else None,
            "saved by sharing": index.num_saved,
            unfilled: index.num_unfilled,
            "free" if is_counted else unheld_word(state): stats.num_free_blocks if stats else None,
            "cached": stats.num_cached_blocks if stats else None,
        }
        publishes_cached = state.cached_blocks is not None
        drawn = self._pool.block_grid
        signs = legend(index, unheld_word(state), width, drawn, publishes_cached=publishes_cached)
        lines = [summary(index, counts, width), signs]
        beside = self.has_class("-beside")
        owners = self._pool.visible_owners()
        if not beside:
            lines.append(names(state, owners, width, self._pool.marks))
        self._legend.set_lines([((" ", ""), *line) for line in lines])
        self._update_facts()

    def _update_facts(self) -> None:
        """Updates the details of the block under the cursor, and the list of owners."""
        if not self._facts.size:
            return
        state, index, cursor = self.ui.state, self._pool.index, self._pool.cursor
        room, selected = self._facts.text_width, self.ui.cursor.seq_id
        about = facts(state, index, cursor, selected, room, self._pool.marks)
        if len(index):
            cell = self._pool.block_grid.cell(cursor)
            about = [*cell_facts(state, index, cell, room), *about]
        if self.has_class("-beside"):
            owners = self._pool.visible_owners()
            about = [
                *about,
                (),
                *owner_table(state, index, owners, selected, room, self._pool.marks),
            ]
        self._facts.set_lines(about)
