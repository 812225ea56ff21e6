"""The answers of commands as plain text: lines that are safe to print, and tables of them."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.cells import cell_len

from seqtop.text.sanitize import safe_line

GAP = "  "
"""Between two columns."""


def plain(lines: Iterable[str]) -> str:
    """Returns lines as one text without control characters."""
    return "\n".join(map(safe_line, lines))


def table(rows: Iterable[Sequence[str]], left: Sequence[int] = ()) -> list[str]:
    """Returns a line for each row; each column is as wide as its widest text.

    Args:
        rows: The texts of the cells; the first row has the titles. The last ones may be missing.
        left: The columns that are aligned left, counted from 0, or from -1 at the end of the widest
            row. Numbers are aligned right.
    """
    cells = [[safe_line(text) for text in row] for row in rows]
    columns = [*zip_longest(*cells, fillvalue="")]
    aligned = []
    for index, column in enumerate(columns):
        width = max(map(cell_len, column))
        is_left = index in left or index - len(columns) in left
        aligned.append(
            [
                f"{text}{' ' * (width - cell_len(text))}"
                if is_left
                else f"{' ' * (width - cell_len(text))}{text}"
                for text in column
            ]
        )
    return [GAP.join(row).rstrip() for row in zip(*aligned, strict=True)]
