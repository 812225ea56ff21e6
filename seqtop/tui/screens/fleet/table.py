"""The list of engines."""

from collections.abc import Sequence

from textual.message import Message

from seqtop.state.summary import group_of
from seqtop.tui.rendering.list_view import MARGIN, ListView
from seqtop.tui.rendering.style import Line
from seqtop.tui.screens.fleet import cells
from seqtop.tui.screens.fleet.engine_filter import EngineFilter
from seqtop.tui.ui_state import Engines


class FleetRows(ListView):
    """A row per engine. The cursor is on the engine that the other screens show.

    If the engines serve several models, of which one has several engines, those of each model are
    together below a line of their own. The key of such a line is negative.
    """

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
        """The keys of the rows: the numbers of engines, and the lines of groups."""
        self._groups: list[list[int]] = []
        """The engines in the list by group, if they are grouped; the line of the first has key -1.
        """
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
        self._group()
        self._outlying = cells.outlying(self._engines.all)

    def _group(self) -> None:
        """Puts the engines of each group together, at the place of its first one."""
        groups: dict[tuple[str, str] | None, list[int]] = {}
        for number in self._rows:
            summary = self._engines.all[number].summary
            name = None if summary is None else group_of(summary)
            groups.setdefault(name, []).append(number)
        known = [group for name, group in groups.items() if name is not None]
        is_grouped = len(known) > 1 and max(map(len, known)) > 1
        self._groups = [*groups.values()] if is_grouped else []
        if is_grouped:
            lines = enumerate(self._groups, 1)
            self._rows = [key for line, group in lines for key in (-line, *group)]

    @property
    def num_engines(self) -> int:
        """The number of engines in the list."""
        return len(self._rows) - len(self._groups)

    @property
    def is_grouped(self) -> bool:
        """True if the engines of each model are below a line of their own."""
        return bool(self._groups)

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
        if key < 0:
            return cells.group_row([self._engines.all[number] for number in self._groups[-key - 1]])
        ui = self._engines.all[key]
        with ui.lock:
            return cells.row(cells.arrange(self.text_width - MARGIN), ui, self._outlying[key])

    def go(self, row: int) -> None:
        before = self.cursor_row
        step = -1 if before is not None and row < before else 1
        row = max(min(row, self.num_rows - 1), 0)
        if self._rows[row : row + 1] and self._rows[row] < 0:  # on to the next engine
            row = row + step if row + step >= 0 else row + 1
        super().go(row)

    def select(self, key: int) -> None:
        if key < 0:
            return  # a click on the line of a group
        self._engines.shown_index = key
        row = self._rows.index(key)
        if row and self._rows[row - 1] < 0:
            self.reveal(row - 1)
        self.reveal(row)
        self.refresh_changed()
        self.post_message(self.Moved())
