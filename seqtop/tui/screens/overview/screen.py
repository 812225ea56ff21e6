"""The overview screen: charts of the engine's figures on one time axis."""

from collections.abc import Callable, Iterable, Sequence

from textual.binding import Binding
from textual.widget import Widget

from seqtop.tui import seek
from seqtop.tui.chrome.overview_charts import ALL_CHARTS, Charts
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.keymap import unlisted
from seqtop.tui.rendering.viewport import Mode, Viewport
from seqtop.tui.screens import sequences
from seqtop.tui.screens.engine_screen import EngineScreen
from seqtop.tui.screens.overview import TAB
from seqtop.tui.ui_state import Changes, UiState

_PAN = 0.25
"""Share of the window that one key press moves it by."""


class OverviewScreen(EngineScreen):
    """Charts of throughput, sequences, KV cache, preemptions and time on one time axis."""

    TAB = TAB
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        unlisted("left", "cursor(-1)", "Move the cursor a column back", "time.column-back"),
        unlisted("right", "cursor(1)", "Move the cursor a column forward", "time.column-on"),
        Binding("plus,equals_sign", "zoom(1)", "Zoom in", id="look.closer"),
        Binding("minus", "zoom(-1)", "Zoom out", id="look.wider"),
        unlisted("h", "pan(-1)", "Look at earlier times", "look.earlier"),
        unlisted("l", "pan(1)", "Look at later times", "look.later"),
        Binding("a", "fit", "All", id="look.all", tooltip="Fit everything in"),
        Binding("f", "follow", "Now", id="look.now", tooltip="Follow the moment on display"),
        Binding(
            "enter", "open", "Sequences", id="screen.open",
            tooltip="Show the sequences of the moment on display",
        ),
    ]  # fmt: skip

    def __init__(self, ui: UiState, *, title: str, tabs: Sequence[Tab]) -> None:
        super().__init__(ui, title=title, tabs=tabs)
        self._viewport = Viewport()
        self._charts = Charts(ui, self._viewport, ALL_CHARTS, id="overview")

    def body(self) -> Iterable[Widget]:
        yield self._charts

    def on_mount(self) -> None:
        self._charts.focus()

    def on_resize(self) -> None:
        super().on_resize()
        self.call_after_refresh(self.show_all)

    def update(self, changes: Changes) -> None:
        self._charts.update()

    def action_cursor(self, by: int) -> None:
        wanted = seek.to_time(self._charts.time_beside_cursor(by), by)
        self.go_to(wanted, "There is no other moment in the history this way.")

    def action_zoom(self, by: int) -> None:
        self._look(lambda: self._viewport.zoom(self._charts.extent, self._charts.window.width, by))

    def action_pan(self, by: int) -> None:
        self._look(
            lambda: self._viewport.pan(self._charts.extent, self._charts.window.width, by * _PAN)
        )

    def action_fit(self) -> None:
        self._viewport.mode = Mode.ALL
        self.show_all()

    def action_follow(self) -> None:
        self._look(lambda: self._viewport.follow(self._charts.extent, self._charts.window.width))

    def action_open(self) -> None:
        self.app.switch_mode(sequences.TAB.name)

    def _look(self, change: Callable[[], None]) -> None:
        with self.ui.lock:
            change()
        self.show_all()
