"""The list of engines."""

from collections.abc import Sequence

from textual.message import Message

from seqtop.tui.rendering.list_view import MARGIN, ListView
from seqtop.tui.rendering.style import Line
from seqtop.tui.screens.fleet import cells
from seqtop.tui.screens.fleet.engine_filter import EngineFilter
from seqtop.tui.ui_state import Engines


class FleetRows(ListView):
    """A row per engine. The cursor is on the engine that the other screens show."""

    class Moved(Message):
        """The cursor is on another engine."""

    def __init__(self, engines: Engines) -> None:
        super().__init__(engines.ui)
        self._engines = engines
        self.order = next(iter(cells.ORDERS))
        """The key of the order of rows in `ORDERS`."""
        self.filter: EngineFilter = lambda _: True
        """The filter that the engines in the list match."""
        self._rows: list[int] = []
        """The numbers of the engines in the list, in the order of rows."""
        self._outlying: list[set[str]] = []
        """For each engine, the columns in which it is far above its peers."""
        self.sort()

    def sort(self) -> None:
        """Filters and sorts the rows by the current figures."""
        order, figures = cells.ORDERS[self.order], {}
        for number, ui in enumerate(self._engines.all):
            with ui.lock:
                if self.filter(ui):
                    figures[number] = order(ui) if order is not None else 0.0
        self._rows = sorted(figures, key=lambda number: -figures[number])
        self._outlying = cells.outlying(self._engines.all)

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def cursor_row(self) -> int | None:
        shown = self._engines.shown_index
        return self._rows.index(shown) if shown in self._rows else None

    def page(self, start: int, stop: int) -> Sequence[int]:
        return self._rows[start:stop]

    def is_selected(self, key: int) -> bool:
        return key == self._engines.shown_index

    def line(self, key: int) -> Line:
        ui = self._engines.all[key]
        with ui.lock:
            return cells.row(cells.arrange(self.text_width - MARGIN), ui, self._outlying[key])

    def select(self, key: int) -> None:
        self._engines.shown_index = key
        self.reveal(self._rows.index(key))
        self.refresh_changed()
        self.post_message(self.Moved())
