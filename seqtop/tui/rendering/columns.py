"""The line of titles above the columns of a table."""

from collections.abc import Iterable

from seqtop.column_layout import Column
from seqtop.tui.rendering.style import PLAIN, Line


def header(columns: Iterable[Column], gap: str = " ") -> Line:
    """Returns the line of titles, with `gap` between any two."""
    return ((gap.join(column.aligned(column.title) for column in columns), PLAIN),)
