"""The line of titles above the columns of a table."""

from collections.abc import Callable, Iterable, Sequence

from seqtop.text.column_layout import Column
from seqtop.tui.rendering.line_view import DrawnLine, LineView
from seqtop.tui.rendering.list_view import MARGIN
from seqtop.tui.rendering.style import PLAIN, Line


def header(columns: Iterable[Column], gap: str = " ") -> Line:
    """Returns the line of titles, with `gap` between any two."""
    return ((gap.join(column.aligned(column.title) for column in columns), PLAIN),)


class ColumnTitles(LineView):
    """The titles above a `ListView`.

    Args:
        titles: Returns the line of titles for the width of a row in cells.
    """

    def __init__(self, titles: Callable[[int], Line]) -> None:
        super().__init__()
        self._titles = titles

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        return [(((" " * MARGIN, PLAIN), *self._titles(self.text_width - MARGIN)), "header")]
