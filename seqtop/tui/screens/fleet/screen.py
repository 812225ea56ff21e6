"""The fleet screen: all engines of the app."""

from collections.abc import Iterable, Sequence

from textual.binding import Binding
from textual.widget import Widget

from seqtop import format as fmt
from seqtop.connection import ConnectionState
from seqtop.sequence import SequenceStatus
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.engines import Engines
from seqtop.tui.rendering.columns import ColumnTitles, header
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import PLAIN
from seqtop.tui.screens.base import TabbedScreen
from seqtop.tui.screens.fleet import TAB, cells
from seqtop.tui.screens.fleet.table import FleetRows


class FleetScreen(TabbedScreen):
    """A row for each engine. The keys of other screens show the engine under the cursor."""

    TAB = TAB
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding(
            "enter", "app.go_to('sequences')", "Show", id="screen.look", tooltip="Show this engine"
        ),
        Binding("s,f6", "sort", "Sort", id="find.sort", tooltip="Sort by the next of some figures"),
    ]

    def __init__(self, engines: Engines, tabs: Sequence[Tab]) -> None:
        sums = LineView(id="fleet-sums")
        super().__init__(tabs, sums)
        self._engines = engines
        self._sums = sums
        self._rows = FleetRows(engines)

    def body(self) -> Iterable[Widget]:
        yield ColumnTitles(lambda width: header(cells.arrange(width), gap="  "))
        yield self._rows

    def on_mount(self) -> None:
        self._rows.focus()

    def on_screen_resume(self) -> None:
        self.show()

    def show(self) -> None:
        """Draws the lines that look different."""
        self._rows.sort()
        self._rows.set_height(len(self._engines))
        self._rows.refresh_changed()
        self._sums.set_lines([self._line()])

    def action_sort(self) -> None:
        orders = list(cells.ORDERS)
        self._rows.order = orders[(orders.index(self._rows.order) + 1) % len(orders)]
        self.show()
        self.notify(f"Engines are sorted {self._rows.order}.", timeout=2, markup=False)

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
