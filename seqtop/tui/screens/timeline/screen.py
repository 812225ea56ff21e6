"""The timeline screen: the lifecycle of all requests on a shared time axis."""

from collections.abc import Iterable, Sequence

from textual.binding import Binding
from textual.containers import Vertical
from textual.widget import Widget

from seqtop.state.fields import FIELDS
from seqtop.tui import seek
from seqtop.tui.chrome.overview_charts import RATE_CHARTS, Charts
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.keymap import unlisted
from seqtop.tui.navigation import jump
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.screens.empty_hint import EmptyHint
from seqtop.tui.screens.sequence_rows import SequenceRows
from seqtop.tui.screens.timeline import TAB
from seqtop.tui.screens.timeline.rows import TimeAxis, TimelineRows, legend
from seqtop.tui.screens.viewport_screen import ViewportScreen
from seqtop.tui.ui_state import EVERYTHING, Changes, UiState

TALL = 20
"""From this height on, a legend is shown."""
TALL_FOR_CHARTS = 24
"""From this height on, charts of the throughput are shown."""


class TimelineScreen(ViewportScreen):
    """Requests as bars on a shared time axis."""

    TAB = TAB
    WORDS = (
        ("░ queued", "waits for its first step"),
        ("█ prefill", "its prompt is computed, in one chunk or several"),
        ("▆ decode", "a step gives it a token, or several with drafts"),
        ("▒ preempted", "waits again; its blocks were taken, and are computed again"),
        ("▚ swapped", "waits again; its blocks are in host memory"),
        ("┤ length", "ended with as many tokens as it or the model allows"),
        ("✓ stop", "ended by a stop token or text"),
        ("✗ abort", "ended by its client, or by the engine"),
        ("⊘ ignored", "never ran: its prompt is too long"),
        ("Waited", FIELDS["waited"].help),
        ("E2E", FIELDS["e2e"].help),
    )
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding(
            "s", "sort", "Order", id="find.order", tooltip="Order by arrival, or as the table does"
        ),
        unlisted("o", "own(-1)", "Back to this request's last preemption", "time.own-before"),
        unlisted("O", "own(1)", "Forward to this request's next preemption", "time.own-after"),
        unlisted("enter", "open", "Show the sequence in the table", "screen.open"),
    ]

    def __init__(self, ui: UiState, *, title: str, tabs: Sequence[Tab]) -> None:
        super().__init__(ui, title=title, tabs=tabs)
        self._axis = TimeAxis(ui)
        self._rows = TimelineRows(ui, self.viewport)
        self._charts = Charts(
            ui, self.viewport, RATE_CHARTS, id="rates", has_axis=False, shared=self._rows
        )
        self._charts.can_focus = False
        self._hint = EmptyHint(ui, "Press 1: there Esc clears the filter, / edits it.")
        self._legend = LineView(id="legend")
        self._is_drawn = False

    @property
    def time_view(self) -> TimelineRows:
        return self._rows

    def body(self) -> Iterable[Widget]:
        yield self.panel(
            Vertical(
                self._charts, self._axis, self._hint, self._rows, self._legend, id="timeline-panel"
            ),
            TAB.title,
            {"look.closer look.wider": "zoom", "look.earlier look.later": "move",
             "time.own-before time.own-after": "its preemptions", "find.order": "order"},
            is_main=True,
        )  # fmt: skip

    def on_mount(self) -> None:
        self._rows.focus()

    def on_resize(self) -> None:
        super().on_resize()
        height = self.app.size.height
        self._legend.display = height >= TALL
        self._charts.display = height >= TALL_FOR_CHARTS
        self._charts.styles.height = min(max(height // 6, 3), 10)
        self._legend.set_lines([((" ", ""), *legend(self.line_width))])

    def on_timeline_rows_resized(self) -> None:
        self.show_all()

    def update(self, changes: Changes) -> None:
        self._hint.update()
        if not self._rows.size:
            return  # nothing can be shown before the first layout
        self._rows.update(changes)
        if not self._is_drawn:
            self._is_drawn = True
            self._begin()
        if (pending := self.ui.take_pending_selection()) is not None:
            self._rows.select(pending)
        self._axis.update(self._rows)
        self._charts.update()

    def cursor_text(self) -> str:
        return self._rows.cursor_text()

    def _begin(self) -> None:
        """Shows the first requests that overlap the visible time.

        The table's order begins with running requests; if the table is sorted by another column,
        the rows are in the order of arrival.
        """
        if self.ui.view.sort.key:
            self._rows.sort(by_arrival=True)
            self._rows.update(EVERYTHING)
        if self.ui.cursor.set_by_user:
            self._rows.reveal_bar()
            self._rows.reveal_selected()
        else:
            self._rows.reveal_window()

    def resume(self) -> None:
        super().resume()
        self._rows.reveal_selected()

    def on_sequence_rows_moved(self, _: SequenceRows.Moved) -> None:
        with self.ui.lock:
            before = self._rows.window
            self._rows.reveal_bar()
            has_moved = self.viewport.window(self._rows.extent, before.width) != before
            self.show_place()
        if has_moved:
            self.show_all()

    def action_sort(self) -> None:
        with self.ui.lock:
            self._rows.sort(by_arrival=not self._rows.by_arrival)
            self._rows.select(self.ui.cursor.seq_id)
        self.show_all()
        order = "of arrival" if self._rows.by_arrival else "of the table"
        self.notify(f"Rows are in the order {order}.", timeout=2, markup=False)

    def action_own(self, direction: int) -> None:
        with self.ui.lock:
            if (selection := self.ui.selection) is None:
                return
            name = selection[0].request_id
            where = "after" if direction > 0 else "before"
            failure = f"No preemption of {name} {where} this moment in the history."
            jump(self.ui, seek.to_preemption_of(name, direction), failure)
            self.ui.cursor.pending = None  # this request stays selected
            self.ui.update()
            self.show(self.ui.take_changes())
