"""The overview screen: charts of the engine's figures on one time axis."""

from collections.abc import Iterable, Sequence

from textual.binding import Binding
from textual.containers import Vertical
from textual.widget import Widget

from seqtop.tui.chrome.overview_charts import ALL_CHARTS, Charts
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.rendering.charts import TIME_WORDS
from seqtop.tui.rendering.engine_figures import engine_figures
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import PLAIN
from seqtop.tui.screens.overview import TAB
from seqtop.tui.screens.overview.headlines import Headlines
from seqtop.tui.screens.viewport_screen import ViewportScreen
from seqtop.tui.ui_state import Changes, UiState

_TALL = 30
"""From this height on, it is said that there were no drafts."""
_MOST_FIGURES = 2
"""The most lines of figures that only some engines have."""


class OverviewScreen(ViewportScreen):
    """Charts of throughput, sequences, KV cache, preemptions and time on one time axis."""

    TAB = TAB
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
             "look.now": "now", "time.drop-before time.drop-after": "change"},
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
        width, height = self.app.size
        has_room = height >= _TALL
        lines = engine_figures(self.ui.state, max(width - 4, 10), names_missing=has_room)
        lines = lines[:_MOST_FIGURES]
        self._figures.display = bool(lines)
        self._figures.styles.height = max(len(lines), 1)
        self._figures.set_lines([((" ", PLAIN), *line) for line in lines])
