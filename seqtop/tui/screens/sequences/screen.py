"""The main screen: the sequence table and the detail of the selected sequence."""

from collections.abc import Iterable, Sequence

from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from seqtop.sequence import SequenceStatus
from seqtop.state.fields import FIELDS, sequence_name
from seqtop.state.filter import parse
from seqtop.state.ordering import Sort
from seqtop.state.wait_graph import queue_head
from seqtop.tui import seek
from seqtop.tui.chrome.filter_bar import FilterBar
from seqtop.tui.chrome.latency_panel import LatencyPanel
from seqtop.tui.chrome.overview_charts import STRIP_CHARTS, Charts
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.keymap import unlisted
from seqtop.tui.rendering.list_view import MARGIN
from seqtop.tui.rendering.viewport import Viewport
from seqtop.tui.screens.engine_screen import EngineScreen
from seqtop.tui.screens.sequence_rows import SequenceRows
from seqtop.tui.screens.sequences import TAB
from seqtop.tui.screens.sequences.detail import LATENCY, WAITS, Detail
from seqtop.tui.screens.sequences.folding import fold, fold_all, group_by, toggle_tree
from seqtop.tui.screens.sequences.latency_parts import LatencyParts
from seqtop.tui.screens.sequences.summary import Summary
from seqtop.tui.screens.sequences.table import SequenceTable, Titles
from seqtop.tui.screens.sequences.token_marks import NEXT, NOTICES
from seqtop.tui.settings import SettingsChanged, sort_text
from seqtop.tui.ui_state import EVERYTHING, NOTHING, Changes, UiState

WIDE = 160
"""From this width on, the detail pane is beside the table."""
TALL = 30
"""From this height on, it is shown below the table by default."""
TALL_FOR_CHARTS = 45
"""From this height on, charts are shown below the table."""
TALL_FOR_LATENCIES = 55
"""From this height on, in wide terminals, latencies are shown below the table by default."""
FILTER_EXAMPLES = "text  re:/regex/  status:waiting  prompt>1000  -status:stop"
LEAST_CHARTS = 11
"""The lines of the charts and their frame below a long table."""
LEAST_LIST, MOST_BELOW = 4, 20
"""Lines that a pane below the table leaves for titles and rows, and lines that it takes at most,
unless the user has resized it."""
USUAL_SHARE, USUAL_SHARE_BESIDE = 50, 36
"""Percent that the pane takes below and beside the table; the style sheet has the same values."""


class Body(Container):
    """The table and the detail pane, which share the space between header and other panes."""

    BLANK = True  # what is in it covers it

    class Resized(Message):
        """The size has changed."""

    def on_resize(self) -> None:
        self.post_message(self.Resized())


class SequencesScreen(EngineScreen):
    """All sequences, and one of them in detail."""

    TAB = TAB
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding(
            "slash,f4",
            "filter",
            "Filter",
            id="find.filter",
            tooltip="Filter by text, regex or field",
        ),
        Binding(
            "s,f6",
            "choose_sort",
            "Sort",
            id="find.sort",
            tooltip="Choose the column to sort by",
        ),
        unlisted("less_than_sign", "cycle_sort(-1)", "Sort by the column before", "find.before"),
        unlisted("greater_than_sign", "cycle_sort(1)", "Sort by the column after", "find.after"),
        Binding(
            "c,f2",
            "choose_columns",
            "Choose and order the columns",
            show=False,
            id="find.columns",
        ),
        unlisted("r", "reverse", "Reverse the order", "find.reverse"),
        Binding(
            "backslash,f3",
            "search",
            "Search, and hide nothing",
            show=False,
            id="find.search",
        ),
        unlisted("m", "next_hit(1)", "Next match of the search", "find.next"),
        unlisted("M", "next_hit(-1)", "Match before", "find.previous"),
        unlisted("escape", "clear", "Clear the search, the filter, the groups", "find.clear"),
        unlisted("t,f5", "tree", "Group sequences by request, or not", "find.tree"),
        unlisted("G", "group", "Group rows by prefix, status, adapter …", "find.group"),
        unlisted("z", "fold", "Fold or unfold the selected tree or group", "find.fold"),
        unlisted("Z", "fold_all", "Fold or unfold all trees or groups", "find.fold-all"),
        Binding(
            "d", "toggle_detail", "Detail", id="look.detail", tooltip="Show or hide the detail pane"
        ),
        unlisted("enter", "open_detail", "Show the detail pane", "look.open-detail"),
        unlisted("O", "turn(-1)", "Previous part of the detail", "look.before"),
        unlisted("o", "turn(1)", "Next part of the detail", "look.after"),
        unlisted("left_parenthesis", "part(-1)", "Latency: to the part before", "look.part-before"),
        unlisted("right_parenthesis", "part(1)", "Latency: to the next part", "look.part-after"),
        unlisted("Q", "waits", "Whom it waits for, and what unblocks it", "look.waits"),
        unlisted("i", "mark", "Text: token borders, likelihood, plain", "look.tokens"),
        unlisted("plus,equals_sign", "resize(5)", "A larger detail pane", "look.larger"),
        unlisted("minus", "resize(-5)", "A smaller detail pane", "look.smaller"),
        Binding(
            "y",
            "copy",
            "Copy text, request id or row",
            show=False,
            id="look.copy",
        ),
        unlisted("l", "latency", "Show or hide latencies", "look.latency"),
        Binding(
            "f",
            "follow",
            "Follow",
            id="look.follow",
            tooltip="Follow the selected row, or stop",
        ),
    ]

    def __init__(self, ui: UiState, *, title: str, tabs: Sequence[Tab]) -> None:
        super().__init__(ui, title=title, tabs=tabs)
        self._filter = FilterBar(parse, FILTER_EXAMPLES)
        self._search = FilterBar(parse, FILTER_EXAMPLES, "search")
        self._table = self.panel(
            SequenceTable(ui),
            TAB.title,
            {"find.sort": "sort", "find.reverse": "reverse", "find.columns": "columns",
             "find.tree": "tree", "find.search": "search"},
            is_main=True,
        )  # fmt: skip
        self._detail = self.panel(
            Detail(ui),
            "Sequence",
            {"look.after look.before": "part", "look.larger look.smaller": "size",
             "look.detail": "hide"},
        )  # fmt: skip
        self._latency = self.panel(
            LatencyPanel(ui), "Latencies", {"look.slo": "limits", "look.latency": "hide"}
        )
        self._strip = self.panel(
            Charts(ui, Viewport(), STRIP_CHARTS, id="strip", has_axis=False),
            "Throughput",
            {"screen.overview": "more"},
        )
        self._strip.can_focus = False
        self._list = Vertical(self._table, self._strip, id="list")
        self._table_height: int | None = None
        """The lines of the table, if the charts take the others."""
        self._body = Body(self._list, self._detail, id="body")

    def body(self) -> Iterable[Widget]:
        yield self._body
        yield self._latency

    def on_mount(self) -> None:
        self._table.rows.focus()
        if self.ui.view.filter.source:
            self._mount_bar(self._filter)
            self._filter.fill(self.ui.view.filter.source)

    def _mount_bar(self, bar: FilterBar) -> None:
        """Mounts a bar at its first use."""
        if not bar.is_attached:
            above = self._search if bar is self._filter and self._search.is_attached else self._body
            self.mount(bar, before=above)

    def size_classes(self, width: int, height: int) -> dict[str, bool]:
        return super().size_classes(width, height) | {"-beside": width >= WIDE}

    def on_resize(self) -> None:
        super().on_resize()
        self._strip.display = self.app.size.height >= TALL_FOR_CHARTS
        self._show_latency()
        self._place()

    def on_body_resized(self) -> None:
        self._place()

    def resume(self) -> None:
        super().resume()
        if not self.ui.view.filter.source and self._filter.display:
            self._filter.clear()  # another screen dropped the filter
        self._table.rows.reveal_selected()

    def update(self, changes: Changes) -> None:
        self._table.set_class(self.ui.is_stale, "-stale")
        self._table.titles.refresh_changed()
        self._table.rows.show()
        self._table.hint.update()
        self._share_height()
        if (pending := self.ui.take_pending_selection()) is not None:
            self._table.rows.select(pending)
        self._show_counts()
        self._detail.show(changes)
        self._latency.update(changes)
        self._strip.update()

    def cursor_text(self) -> str:
        return self._table.rows.cursor_text()

    def on_sequence_rows_moved(self, _: SequenceRows.Moved) -> None:
        with self.ui.lock:
            self._detail.show(NOTHING)  # draws only another sequence
            self._show_counts()
            self.show_place()

    def _show_counts(self) -> None:
        """Shows the numbers of matches, and a selected sequence that the filter hides."""
        hidden_id = self.ui.cursor.hidden
        hidden = None if hidden_id is None else self.ui.sequence(hidden_id)
        name = sequence_name(*hidden) if hidden else ""
        self._filter.show_count(len(self.ui.view), len(self.ui.state.sequences), name)
        self._search.show_count(*self.ui.view.hits.place(self.ui.cursor.seq_id))

    def on_titles_clicked(self, message: Titles.Clicked) -> None:
        sort = self.ui.view.sort
        column = FIELDS[message.key]
        is_same = sort.key == message.key
        self.sort_by(Sort(message.key, not sort.descending if is_same else column.descending))

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        if message.bar is self._search:
            with self.ui.lock:
                self.ui.view.hits.search(self.ui.state, parse(message.source))
                self._table.rows.show()
                if (hit := self.ui.view.hits.next(self.ui.cursor.seq_id, 1, here=True)) is not None:
                    self._table.rows.select(hit)
            self.show_all()
        elif message.source != self.ui.view.filter.source:
            with self.ui.lock:
                self.ui.filter_by(parse(message.source))
            self.show_all()

    def on_filter_bar_left(self, _: FilterBar.Left) -> None:
        self._table.rows.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "filter" and isinstance(self.focused, Input):
            return False  # there it is a letter; Textual checks only the names of keys
        return super().check_action(action, parameters)

    def action_filter(self) -> None:
        self._mount_bar(self._filter)
        self._filter.open()
        self.show_all()

    def action_search(self) -> None:
        self._mount_bar(self._search)
        self._search.open()
        self.show_all()

    def action_next_hit(self, by: int) -> None:
        with self.ui.lock:
            hit = self.ui.view.hits.next(self.ui.cursor.seq_id, by)
            if hit is not None:
                self._table.rows.select(hit)
                return
        missing = "Nothing matches." if self._search.display else "Search for something first: \\."
        self.notify(missing, timeout=2, markup=False)

    def action_clear(self) -> None:
        if self._search.display:
            self._search.clear()
        elif self._filter.display:
            self._filter.clear()
        elif self.ui.view.grouped.by:
            self._group_by("")
        elif self._detail.display and self.has_class("-alone"):  # back to the table that it covers
            self.action_toggle_detail()

    def action_choose_sort(self) -> None:
        from seqtop.tui.dialogs.sort_chooser import SortChooser

        def chosen(sort: Sort | None) -> None:
            if sort is not None:
                self.sort_by(sort)

        self.app.push_screen(SortChooser(self.ui.view.sort), chosen)

    def action_choose_columns(self) -> None:
        from seqtop.tui.dialogs.column_chooser import ColumnChooser

        width = self._table.rows.text_width - MARGIN

        def chosen(columns: tuple[str, ...] | None) -> None:
            if columns is not None:
                self.ui.preferences.columns = columns
                self._save_settings(columns=columns)
                self._table.titles.refresh_changed()
                self.show_all()

        self.app.push_screen(
            ColumnChooser(self.ui.preferences.columns, width, self.ui.view.sort.key), chosen
        )

    def action_cycle_sort(self, by: int) -> None:
        keys = ["", *self.ui.preferences.columns]
        here = self.ui.view.sort.key
        at = keys.index(here) if here in keys else 0  # sorted by a hidden column
        key = keys[(at + by) % len(keys)]
        self.sort_by(Sort(key, FIELDS[key].descending if key else False))

    def action_reverse(self) -> None:
        sort = self.ui.view.sort
        self.sort_by(Sort(sort.key, not sort.descending))

    def action_tree(self) -> None:
        with self.ui.lock:
            toggle_tree(self.ui)
        self._save_settings(tree=self.ui.view.tree)
        self.show_all()

    def action_group(self) -> None:
        from seqtop.tui.dialogs.group_chooser import GroupChooser

        def chosen(key: str | None) -> None:
            if key is not None:
                self._group_by(key)

        self.app.push_screen(GroupChooser(self.ui.view.grouped.by), chosen)

    def _group_by(self, key: str) -> None:
        with self.ui.lock:
            group_by(self.ui, key)
            self.ui.cursor.set_by_user = False  # to the first row
        if key:
            self.notify("Enter unfolds a group, Esc ends the groups.", timeout=4, markup=False)
        self._table.titles.refresh_changed()
        self.show_all()

    def action_fold(self) -> None:
        with self.ui.lock:
            folded = fold(self.ui)
        if folded:
            self.show_all()
        else:
            self.notify("This sequence has nothing to fold.", timeout=2, markup=False)

    def action_fold_all(self) -> None:
        with self.ui.lock:
            fold_all(self.ui)
        self.show_all()

    def action_toggle_detail(self) -> None:
        self.ui.preferences.detail_wanted = not self._detail.display
        self._save_settings(detail=self.ui.preferences.detail_wanted)
        self._place()

    def action_resize(self, by: int) -> None:
        if not self._detail.display:
            self.action_open_detail()
            return
        usual = USUAL_SHARE_BESIDE if self.has_class("-beside") else USUAL_SHARE
        share = max(min((self.ui.preferences.detail_share or usual) + by, 80), 20)
        self.ui.preferences.detail_share = share
        self._save_settings(detail_share=share)
        self._place()

    def action_mark(self) -> None:
        self._keep_selected()
        self.ui.preferences.marking = NEXT[self.ui.preferences.marking]
        self.notify(NOTICES[self.ui.preferences.marking], timeout=2, markup=False)
        self.show_all()

    def action_copy(self) -> None:
        from seqtop.tui.dialogs.prompts import CopyDialog, copies

        with self.ui.lock:
            selection = self.ui.selection
            if selection is not None:
                self._keep_selected()
                texts = copies(*selection, self.ui.state.time)

        def chosen(what: str | None) -> None:
            if what is not None:
                self.app.copy_to_clipboard(texts[what])
                self.notify(f"Copied the {what}.", timeout=2, markup=False)

        if selection is None:
            self.notify("No sequence is selected.", severity="warning", markup=False)
        else:
            self.app.push_screen(CopyDialog(), chosen)

    def action_latency(self) -> None:
        self.ui.preferences.latency_wanted = not self._latency.display
        self._save_settings(latency=self.ui.preferences.latency_wanted)
        self._show_latency()
        self.show_all()

    def _show_latency(self) -> None:
        """Shows the latencies if the user wants them, or else where there is much room."""
        wanted, (width, height) = self.ui.preferences.latency_wanted, self.app.size
        has_room = width >= WIDE and height >= TALL_FOR_LATENCIES
        self._latency.display = has_room if wanted is None else wanted

    def action_open_detail(self) -> None:
        if self._table.rows.is_on_group:
            self.action_fold()
            return
        self._keep_selected()
        self.ui.preferences.detail_wanted = True
        self._place()

    def action_turn(self, by: int) -> None:
        if self._detail.display:
            self._keep_selected()
            self._detail.turn(by)
        else:
            self.action_open_detail()

    def show_latency(self) -> None:
        """Shows the parts of the selected request's latency in the detail pane."""
        self.action_open_detail()
        self._detail.turn_to(LATENCY)

    def action_waits(self) -> None:
        """Shows whom the selected request waits for in the detail pane.

        If the user has selected none, and the one in the first row waits for nothing, it is the
        request that is next in the queue; also if the selected one has ended.
        """
        with self.ui.lock:
            selection, head = self.ui.selection, queue_head(self.ui.state)
            waits = selection is not None and selection[1].status is SequenceStatus.WAITING
            is_over = selection is not None and selection[0].finish_reason is not None
            is_free = is_over or not self.ui.cursor.set_by_user
            if is_free and not waits and head and head.request:
                self._table.rows.select(head.request.seq_ids[0])
            counts = self.ui.state.num_by_status
            none = not (counts[SequenceStatus.WAITING] or counts[SequenceStatus.SWAPPED])
        if none:
            self.notify("No request waits.", timeout=2, markup=False)
        self.action_open_detail()
        self._detail.turn_to(WAITS)

    def action_part(self, direction: int) -> None:
        """Goes to the next part of the selected request's latency; first shows the parts."""
        if not self._detail.is_shown(LATENCY):
            self.show_latency()
            return
        with self.ui.lock:
            explanation = self._detail.explanation.read()
            parts = explanation.parts() if explanation is not None else []
        positions = [part.position for part in parts if part.position is not None]
        where = "after" if direction > 0 else "before"
        self.go_to(
            seek.to_next(positions, direction), f"No part of its latency {where} this moment."
        )

    def on_latency_parts_chosen(self, message: LatencyParts.Chosen) -> None:
        self._keep_selected()
        self.go_to(seek.to_position(message.position), "This is the moment on display.")

    def on_summary_step_chosen(self, message: Summary.StepChosen) -> None:
        self._keep_selected()
        self.go_to(seek.to_step(message.step), "This is the moment on display.")

    def on_summary_request_chosen(self, message: Summary.RequestChosen) -> None:
        with self.ui.lock:
            request = self.ui.state.requests.get(message.request_id)
            if request is not None and request.seq_ids:
                self.ui.select(request.seq_ids[0])
                self.ui.update(redraw=True)
        self.show_all()

    def action_follow(self) -> None:
        self.ui.cursor.is_followed = not self.ui.cursor.is_followed
        self._table.rows.select(self.ui.cursor.seq_id)
        what = "Following" if self.ui.cursor.is_followed else "Stopped following"
        self.notify(f"{what} the selected row.", timeout=2, markup=False)

    def _keep_selected(self) -> None:
        """Keeps the cursor on its request: the user reads about it."""
        self.ui.cursor.set_by_user = self.ui.cursor.seq_id is not None

    def _save_settings(self, **changes: object) -> None:
        self.post_message(SettingsChanged(changes))

    def sort_by(self, sort: Sort) -> None:
        """Sorts the table, goes to its first row, and remembers the order for the next run."""
        with self.ui.lock:
            self.ui.sort_by(sort)
            self.ui.cursor.set_by_user = False  # to the first row: one sorts to see the most
        self._save_settings(sort=sort_text(sort))
        self._table.titles.refresh_changed()
        self.show_all()
        self._table.rows.reveal(0)

    def _share_height(self) -> None:
        """Gives the charts below a short table the lines that the table leaves."""
        styles, room = self._table.styles, self._list.size.height
        wanted = None
        if self._strip.display and room:
            titles_and_frame = 1 + self._table.gutter.height
            wanted = min(self._table.rows.num_rows + titles_and_frame, room - LEAST_CHARTS)
            wanted = max(wanted, LEAST_LIST + titles_and_frame)
        if wanted != self._table_height:
            styles.height = self._table_height = wanted

    def _place(self) -> None:
        """Places the detail pane where there is room for it."""
        width, height = self.app.size
        wanted = self.ui.preferences.detail_wanted
        if wanted is None:
            wanted = width >= WIDE or height >= TALL
        self._detail.display = wanted
        beside = width >= WIDE
        alone = wanted and not beside and height < 18
        share, styles = self.ui.preferences.detail_share, self._detail.styles
        styles.width = f"{share}%" if share and beside else None
        styles.height = f"{share}%" if share and not beside and not alone else None
        frame = self._table.gutter.height
        most = max((self._body.size.height or height) - LEAST_LIST - frame, 1)
        below = not beside and not alone
        styles.max_height = (most if share else min(most, MOST_BELOW)) if below else None
        self.set_class(alone, "-alone")
        self._share_height()
        with self.ui.lock:
            self._detail.show(EVERYTHING)
