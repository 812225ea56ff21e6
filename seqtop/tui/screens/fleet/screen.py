"""The fleet screen: all engines of the app."""

from collections.abc import Iterable, Sequence

from rich.markup import escape
from textual.binding import Binding
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Input

from seqtop.state.imbalance import imbalance
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.transport.connection import ConnectionState
from seqtop.tui.chrome.filter_bar import FilterBar
from seqtop.tui.chrome.latency_panel import TWO_COLUMNS, latency_lines
from seqtop.tui.chrome.overview_charts import STRIP_CHARTS, Charts
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.keymap import unlisted
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.list_view import ColumnTitles, header
from seqtop.tui.rendering.style import PLAIN, Line
from seqtop.tui.rendering.viewport import Viewport
from seqtop.tui.screens.base import TabbedScreen
from seqtop.tui.screens.fleet import TAB, cells
from seqtop.tui.screens.fleet.engine_filter import EXAMPLES, parse_engine_filter
from seqtop.tui.screens.fleet.table import FleetRows
from seqtop.tui.ui_state import Engines

TALL_FOR_LATENCIES = 20
"""From this height on, latencies are shown below the list."""
TALL_FOR_CHARTS = 24
"""From this height on, charts are shown below the list, too."""
LEAST_ROWS = 3


_LIVE = ConnectionState.LIVE


class FleetScreen(TabbedScreen):
    """A row for each engine. The keys of other screens show the engine under the cursor."""

    TAB = TAB
    WORDS = tuple((column.title, column.help) for column in cells.COLUMNS)
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding(
            "enter", "app.go_to('sequences')", "Show", id="screen.look", tooltip="Show this engine"
        ),
        Binding(
            "slash,f4",
            "filter",
            "Filter",
            id="find.filter",
            tooltip="Filter by text, KV use or queue",
        ),
        Binding("s,f6", "sort", "Sort", id="find.sort", tooltip="Sort by the next of some figures"),
        unlisted("escape", "clear", "Clear the filter", "find.clear"),
    ]

    def __init__(self, engines: Engines, tabs: Sequence[Tab]) -> None:
        sums = LineView(id="fleet-sums")
        super().__init__(tabs, sums)
        self._engines = engines
        self._sums = sums
        self._filter = FilterBar(parse_engine_filter, EXAMPLES)
        self._rows = FleetRows(engines)
        titles = ColumnTitles(lambda width: header(cells.arrange(width), gap="  "))
        self._table = Vertical(titles, self._rows, id="fleet-table")
        self._charts = Charts(
            engines.ui, Viewport(), STRIP_CHARTS, id="fleet-charts", has_axis=False
        )
        self._charts.can_focus = False
        self._latency = LineView(id="fleet-latency")

    def body(self) -> Iterable[Widget]:
        yield self._filter
        yield self.panel(
            self._table, "Engines", {"screen.look": "show", "find.sort": "sort"}, is_main=True
        )
        yield self.panel(self._charts, "")
        yield self.panel(self._latency, "Latencies")

    def on_mount(self) -> None:
        self._rows.focus()

    def size_classes(self, width: int, height: int) -> dict[str, bool]:
        return super().size_classes(width, height) | {"-charts": height >= TALL_FOR_CHARTS}

    def on_resize(self) -> None:
        super().on_resize()
        height = self.app.size.height
        self._charts.display = height >= TALL_FOR_CHARTS
        self._latency.display = height >= TALL_FOR_LATENCIES
        self.call_after_refresh(self.show)

    def resume(self) -> None:
        self.show()

    def show(self) -> None:
        """Draws the lines that look different."""
        rows = self._rows
        self._engines.update()
        rows.sort()
        rows.set_height(rows.num_rows)
        # The charts take the lines that the rows leave.
        height = 1 + max(rows.num_rows, LEAST_ROWS) + self._table.gutter.height
        self._table.styles.height = height if self._charts.display else None
        rows.refresh_changed()
        self._filter.show_count(rows.num_engines, len(self._engines))
        live = [ui for ui in self._engines.all if ui.source.connection.state is _LIVE]
        known = [ui.named for ui in live if ui.named is not None]
        # With groups, the line of each says it.
        uneven = "" if rows.is_grouped else safe_line(imbalance(known))
        self._table.border_title = escape(uneven) if uneven else "Engines"
        is_framed = self._table.gutter.height > 0
        beside: Line = (("   ", PLAIN), (uneven, "waiting")) if uneven and not is_framed else ()
        self._sums.set_lines([(*self._line(), *beside)])
        self._show_engine()

    def on_fleet_rows_moved(self) -> None:
        self._show_engine()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        self._rows.filter = parse_engine_filter(message.source)
        self.show()

    def on_filter_bar_left(self) -> None:
        self._rows.focus()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "filter" and isinstance(self.focused, Input):
            return False  # there it is a letter; Textual checks only the names of keys
        return super().check_action(action, parameters)

    def action_filter(self) -> None:
        self._filter.open()
        self.show()

    def action_clear(self) -> None:
        if self._filter.display:
            self._filter.clear()

    def action_sort(self) -> None:
        orders = list(cells.ORDERS)
        self._rows.order = orders[(orders.index(self._rows.order) + 1) % len(orders)]
        self.show()
        self.notify(f"Engines are sorted {self._rows.order}.", timeout=2, markup=False)

    def _show_engine(self) -> None:
        """Shows the charts and the latencies of the engine under the cursor."""
        ui = self._engines.ui
        self._charts.show_display(ui)
        if not self._latency.display:
            return
        with ui.lock:
            endpoint = ui.source.connection.endpoint
            # Engines of one name differ by their endpoints, which small terminals do not list.
            name = escape(safe_line(" · ".join(dict.fromkeys((ui.name, endpoint)))))
            self._charts.border_title = name
            self._latency.border_title = "Latencies" if self._charts.display else name
            width = self._latency.text_width
            self._latency.set_class(width >= TWO_COLUMNS, "-two-columns")
            self._latency.set_lines(
                latency_lines(ui.latencies.slo, ui.measured, ui.state.time, width, "no limits")
            )

    def _line(self) -> tuple[tuple[str, str], ...]:
        engines = self._engines.all
        live = [ui for ui in engines if ui.source.connection.state is ConnectionState.LIVE]
        engines_and_live = (
            (" seqtop", "title"),
            (f"  {fmt.plural(len(engines), 'engine')}, {len(live)} live", PLAIN),
        )
        if not live:  # sums of nothing, beside rows with figures of recordings
            return engines_and_live
        known = [ui.summary for ui in live if ui.summary is not None]
        running = sum(own.num_running for own in known)
        waiting = sum(own.num_waiting for own in known)
        rates = [own.generated_rate for own in known if own.generated_rate is not None]
        return (
            *engines_and_live,
            ("   ●", "running"),
            (f" {fmt.count(running)} running", PLAIN),
            ("   ○", "waiting"),
            (f" {fmt.count(waiting)} waiting", PLAIN),
            (f"   out {fmt.rate(sum(rates) if rates else None)} tok/s", PLAIN),
        )
