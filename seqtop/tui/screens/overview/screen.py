"""The overview screen: charts of the engine's figures on one time axis."""

from collections.abc import Iterable, Sequence

from textual.binding import Binding
from textual.containers import Vertical
from textual.widget import Widget

from seqtop.tui import seek
from seqtop.tui.chrome.overview_charts import ALL_CHARTS, Charts
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.keymap import unlisted
from seqtop.tui.rendering.charts import TIME_WORDS
from seqtop.tui.rendering.engine_figures import engine_figures
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import PLAIN
from seqtop.tui.screens.overview import TAB
from seqtop.tui.screens.overview.headlines import Headlines
from seqtop.tui.screens.viewport_screen import ViewportScreen
from seqtop.tui.ui_state import Changes, UiState

_MOST_FIGURES = 2
"""The most lines of figures that only some engines have."""


class OverviewScreen(ViewportScreen):
    """Charts of throughput, sequences, KV cache, preemptions and time on one time axis."""

    TAB = TAB
    STEP_KEYS = "',' '.'"
    WORDS = (
        ("Output, Prefill", "tokens generated, and prompt tokens computed, per second"),
        ("KV blocks", "⣿ in block tables, ⡪ only in the prefix cache, blank: free"),
        ("", "upper lines in warmer colours: the pool is nearly full"),
        ("Preempted", "↺ for a preemption, from two on their number"),
        ("Time", "the parts of the time, in the order of the line below the axis; a cell"),
        ("", "shows the part that takes most of it, so a small part may have none:"),
        *TIME_WORDS.items(),
    )
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        unlisted("left", "cursor(-1)", "Move the cursor a column back", "time.column-back"),
        unlisted("right", "cursor(1)", "Move the cursor a column forward", "time.column-on"),
        unlisted("left_square_bracket", "change(-1)", "To the drop or spike before", "time.drop"),
        unlisted("right_square_bracket", "change(1)", "To the next drop or spike", "time.drop-on"),
        Binding(
            "enter", "open", "Sequences", id="screen.open",
            tooltip="Show the sequences of the moment on display",
        ),
    ]  # fmt: skip

    def __init__(self, ui: UiState, *, title: str, tabs: Sequence[Tab]) -> None:
        super().__init__(ui, title=title, tabs=tabs)
        self._charts = Charts(ui, self.viewport, ALL_CHARTS, id="overview")
        self._headlines = Headlines(ui, self._charts)
        self._figures = LineView(id="engine-figures")

    @property
    def time_view(self) -> Charts:
        return self._charts

    def body(self) -> Iterable[Widget]:
        yield self.panel(
            Vertical(self._charts, self._figures, self._headlines, id="overview-panel"),
            TAB.title,
            {"look.closer look.wider": "zoom", "look.earlier look.later": "move", "look.all": "all",
             "look.now": "now", "time.drop time.drop-on": "change"},
            is_main=True,
        )  # fmt: skip

    def on_mount(self) -> None:
        self._charts.focus()

    def on_resize(self) -> None:
        super().on_resize()
        self.call_after_refresh(self.show_all)

    def update(self, changes: Changes) -> None:
        self._charts.update()
        self._headlines.update()
        lines = engine_figures(self.ui.state, max(self.app.size.width - 4, 10))[:_MOST_FIGURES]
        self._figures.display = bool(lines)
        self._figures.styles.height = max(len(lines), 1)
        self._figures.set_lines([((" ", PLAIN), *line) for line in lines])

    def action_change(self, direction: int) -> None:
        with self.ui.lock:
            positions = self._headlines.positions()
        otherwise = "There is no other drop or spike in the charts this way."
        self.go_to(seek.to_next(positions, direction), otherwise)

    def action_cursor(self, by: int) -> None:
        wanted = seek.to_time(self._charts.time_beside_cursor(by), by)
        self.go_to(wanted, "There is no other moment in the history this way.")
