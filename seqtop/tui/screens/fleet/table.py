"""The list of engines."""

from collections.abc import Sequence

from seqtop.tui.engines import Engines
from seqtop.tui.rendering.list_view import MARGIN, ListView
from seqtop.tui.rendering.style import Line
from seqtop.tui.screens.fleet import cells


class FleetRows(ListView):
    """A row per engine. The cursor is on the engine that the other screens show."""

    def __init__(self, engines: Engines) -> None:
        super().__init__(engines.ui)
        self._engines = engines
        self.order = next(iter(cells.ORDERS))
        """The key of the order of rows in `ORDERS`."""
        self._rows: list[int] = []
        """The numbers of the engines in the order of rows."""
        self.sort()

    def sort(self) -> None:
        """Sorts the rows by the current figures."""
        engines, order = self._engines.all, cells.ORDERS[self.order]
        self._rows = list(range(len(engines)))
        if order is not None:
            figures = {}
            for number, ui in enumerate(engines):
                with ui.lock:
                    figures[number] = order(ui)
            self._rows.sort(key=lambda number: -figures[number])

    @property
    def num_rows(self) -> int:
        return len(self._engines)

    @property
    def cursor_row(self) -> int | None:
        return self._rows.index(self._engines.shown)

    def page(self, start: int, stop: int) -> Sequence[int]:
        return self._rows[start:stop]

    def is_selected(self, key: int) -> bool:
        return key == self._engines.shown

    def line(self, key: int) -> Line:
        ui = self._engines.all[key]
        with ui.lock:
            return cells.row(cells.arrange(self.text_width - MARGIN), ui)

    def select(self, key: int) -> None:
        self._engines.shown = key
        self.reveal(self._rows.index(key))
        self.refresh_changed()
