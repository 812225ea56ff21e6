"""The columns of a table that fit into a width, and the width of each."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

UNLIMITED = 1_000_000
"""The `max_width` of a column that takes all cells that are left."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table, and its place in it. Widths are in cells.

    Attributes:
        key: The name in filters, settings and on the command line.
        title: The text above the column.
        width: The usual width.
        min_width: The width down to which the column shrinks if the table is too wide; by default
            it does not shrink.
        max_width: The width up to which the column grows if cells are left; by default it does not
            grow.
        share: The part of the table's width that the column has at least.
        priority: 0 for a column that is always shown. Of the others, those with the largest number
            are left out first.
        right: Whether texts are aligned right.

    Raises:
        ValueError: The column has no width or no priority.
    """

    key: str
    title: str
    width: int = 0
    min_width: int | None = None
    max_width: int = 0
    share: float = 0.0
    priority: int = -1
    right: bool = True

    def __post_init__(self) -> None:
        if self.width < 1 or self.priority < 0:
            raise ValueError(f"column {self.key!r} has no place: it needs a width and a priority")

    def aligned(self, text: str) -> str:
        """Returns `text`, in which each character takes one cell, padded to the width."""
        return text.rjust(self.width) if self.right else text.ljust(self.width)


AnyColumn = TypeVar("AnyColumn", bound=Column)


def fit(
    columns: Sequence[AnyColumn], width: int, *, gap: int = 1, keep: Collection[str] = ()
) -> tuple[AnyColumn, ...]:
    """Returns the columns that fit into `width` cells, in their order, with their new widths.

    If the columns that stay are still too wide, one column shrinks to its `min_width`; what does
    not fit even then is cut off at the right.

    Args:
        columns: All columns.
        width: The cells of a row.
        gap: The cells between two columns.
        keep: The keys of columns that stay like those of priority 0.
    """
    chosen = [column for column in columns if not column.priority or column.key in keep]
    chosen = chosen or [*columns[:1]]
    widths = {column.key: max(column.width, int(width * column.share)) for column in columns}
    room = width + gap - sum(widths[column.key] + gap for column in chosen)
    others = (column for column in columns if column not in chosen)
    for column in sorted(others, key=lambda column: column.priority):
        if widths[column.key] + gap > room:
            break
        room -= widths[column.key] + gap
        chosen.append(column)
    elastic = [column for column in columns if column.max_width == UNLIMITED and column in chosen]
    # A column with a share of the table doubles before those with a limit grow.
    reserved = sum(widths[column.key] for column in elastic if column.share)
    for column in chosen:
        if column.width < column.max_width < UNLIMITED:
            more = min(column.max_width - column.width, max(room - reserved, 0))
            widths[column.key] += more
            room -= more
    for column in chosen:
        if room < 0 and column.min_width is not None:
            less = min(widths[column.key] - column.min_width, -room)
            widths[column.key] -= less
            room += less
    for index, column in enumerate(reversed(elastic)):
        more = max(room, 0) // (len(elastic) - index)
        widths[column.key] += more
        room -= more
    return tuple(
        replace(column, width=widths[column.key]) for column in columns if column in chosen
    )
