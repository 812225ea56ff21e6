"""The list of engines."""

from collections.abc import Sequence

from seqtop.tui.engines import Engines
from seqtop.tui.rendering.columns import header
from seqtop.tui.rendering.line_view import DrawnLine, LineView
from seqtop.tui.rendering.list_view import MARGIN, ListView
from seqtop.tui.rendering.style import PLAIN, Line
from seqtop.tui.screens.fleet import cells


class FleetTitles(LineView):
    """The titles of the columns."""

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        line = header(cells.arrange(self.text_width - MARGIN), gap="  ")
        return [(((" " * MARGIN, PLAIN), *line), "header")]


class FleetRows(ListView):
    """A row per engine. The cursor is on the engine that the other screens show."""

    def __init__(self, fleet: Engines) -> None:
        super().__init__(fleet.feed)
        self._fleet = fleet

    @property
    def num_rows(self) -> int:
        return len(self._fleet)

    @property
    def cursor_row(self) -> int | None:
        return self._fleet.shown

    def page(self, start: int, stop: int) -> Sequence[int]:
        return range(len(self._fleet))[start:stop]

    def is_selected(self, key: int) -> bool:
        return key == self._fleet.shown

    def line(self, key: int) -> Line:
        feed = self._fleet.feeds[key]
        with feed.lock:
            return cells.row(cells.arrange(self.text_width - MARGIN), feed)

    def select(self, key: int) -> None:
        self._fleet.shown = key
        self.reveal(key)
        self.refresh_changed()
