"""The fleet screen: all engines of the app."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding

from seqtop import format as fmt
from seqtop.connection import ConnectionState
from seqtop.sequence import SequenceStatus
from seqtop.tui.chrome.footer import KeyFooter
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.engines import Engines
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import PLAIN
from seqtop.tui.screens.base import TabbedScreen
from seqtop.tui.screens.fleet import TAB
from seqtop.tui.screens.fleet.table import FleetRows, FleetTitles


class FleetScreen(TabbedScreen):
    """A row for each engine. The keys of other screens show the engine under the cursor."""

    TAB = TAB
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("enter", "app.go_to('sequences')", "Look", id="screen.look", tooltip="Look at it"),
    ]

    def __init__(self, engines: Engines, tabs: Sequence[Tab]) -> None:
        super().__init__(tabs)
        self._engines = engines
        self._sums = LineView(id="fleet-sums")
        self._rows = FleetRows(engines)

    def compose(self) -> ComposeResult:
        yield self._sums
        yield self._tabs
        yield FleetTitles()
        yield self._rows
        yield KeyFooter()

    def on_mount(self) -> None:
        self._rows.focus()

    def on_screen_resume(self) -> None:
        self.show()

    def show(self) -> None:
        """Draws what has changed."""
        self._rows.set_height(len(self._engines))
        self._rows.refresh_changed()
        self._sums.set_lines([self._line()])

    def _line(self) -> tuple[tuple[str, str], ...]:
        engines = self._engines.all
        live = [ui for ui in engines if ui.source.connection.state is ConnectionState.LIVE]
        counts = [ui.source.state.num_by_status for ui in live]
        running = sum(each[SequenceStatus.RUNNING] for each in counts)
        waiting = sum(each[SequenceStatus.WAITING] for each in counts)
        rates = [rate for ui in live if (rate := ui.current_rates.tokens_out) is not None]
        return (
            (" seqtop", "title"),
            (f"  {fmt.plural(len(engines), 'engine')}, {len(live)} live", PLAIN),
            ("   ●", "running"),
            (f" {fmt.count(running)} running", PLAIN),
            ("   ○", "waiting"),
            (f" {fmt.count(waiting)} waiting", PLAIN),
            (f"   out {fmt.rate(sum(rates) if rates else None)} tok/s", PLAIN),
        )
