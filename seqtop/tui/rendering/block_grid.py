"""The layout of the blocks of several pools as rows of cells, for maps of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from seqtop.tui.rendering.cell_map import EDGE, GROUP, OUTLINE, outlined
from seqtop.tui.rendering.owner_marks import OWNER_STYLES
from seqtop.tui.rendering.style import PLAIN, Line, StyledText
from seqtop.tui.rendering.wrapped_text import wrap

PATTERN = "▚"
"""The last line of a large cell whose owner has the style of a neighbour, in place of `EDGE`."""


class Pool(NamedTuple):
    """The blocks of one kind of memory."""

    name: str
    size: int
    """The number of its blocks."""
    has_title: bool = True
    """True if a line above its first row names it, when it has blocks."""


class BlockGrid(NamedTuple):
    """The layout of the cells: for each pool its title and rows.

    Blocks are numbered from 0 across all pools. A cell stands for one block, or for `span` blocks.
    """

    pools: tuple[Pool, ...]
    per_row: int
    """Cells in a row."""
    pitch: int = 1
    """The columns of a cell and the gap after it."""
    lines: int = 1
    """The lines of a cell."""
    span: int = 1
    """The blocks of a cell."""

    @property
    def label(self) -> int:
        """The columns for the number at the beginning of a row, and the gap after it."""
        return label_width(self.pools)

    @property
    def width(self) -> int:
        """The columns of a cell without the gap after it, which narrow cells do not have."""
        return self.pitch - (self.pitch > 2)

    @property
    def row_blocks(self) -> int:
        """The blocks of a row."""
        return self.per_row * self.span

    @property
    def num_blocks(self) -> int:
        """The blocks of all pools."""
        return sum(pool.size for pool in self.pools)

    @property
    def height(self) -> int:
        """The lines of the whole grid."""
        return max((stop for *_, stop in self._rows()), default=0)

    def blocks(self, y: int) -> range:
        """Returns the blocks on line `y`; none on a title, above the grid and below it."""
        for pool, first, top, stop in self._rows():
            if top <= y < stop:
                start = first + (y - top) // self.lines * self.row_blocks
                return range(start, min(start + self.row_blocks, first + pool.size))
        return range(0)

    def title(self, y: int) -> Pool | None:
        """Returns the pool whose title is line `y`."""
        for pool, _, top, stop in self._rows():
            if pool.has_title and y == top - 1 and top < stop:
                return pool
        return None

    def cells(self, y: int) -> list[range]:
        """Returns the blocks of each cell on line `y`."""
        blocks = self.blocks(y)
        return [blocks[at : at + self.span] for at in range(0, len(blocks), self.span)]

    def line(self, block: int) -> int:
        """Returns the first line of a block's cell."""
        for pool, first, top, _ in self._rows():
            if block < first + pool.size:
                return top + (block - first) // self.row_blocks * self.lines
        return self.height

    def column(self, block: int) -> int:
        """Returns the first column of a block's cell."""
        cell = (block - self.blocks(self.line(block)).start) // self.span
        return self.label + cell * self.pitch + cell // GROUP

    def cell(self, block: int) -> range:
        """Returns the blocks of the cell with `block`."""
        blocks = self.blocks(self.line(block))
        at = (block - blocks.start) // self.span * self.span
        return blocks[at : at + self.span]

    def cell_at(self, x: int, y: int) -> range | None:
        """Returns the blocks of the cell at column `x` of line `y`."""
        group, rest = divmod(x - self.label, GROUP * self.pitch + 1)
        column = group * GROUP + rest // self.pitch
        cells = self.cells(y)
        if x < self.label or rest >= GROUP * self.pitch or column >= len(cells):
            return None
        return cells[column]

    def moved(self, block: int, rows: int) -> int:
        """Returns the block `rows` below (above, if negative), or the nearest that exists."""
        line = self.line(block)
        column = block - self.blocks(line).start
        target = max(0, min(line + rows * self.lines, self.height - 1))
        if not self.blocks(target):  # the cursor skips titles
            target += 1 if rows > 0 or target == 0 else -1
        reached = self.blocks(target)
        return reached[min(column, len(reached) - 1)] if reached else block

    def pool_of(self, block: int) -> tuple[Pool, int]:
        """Returns the pool of a block and the block's number in it.

        Raises:
            IndexError: There is no such block.
        """
        first = 0
        for pool in self.pools:
            if first <= block < first + pool.size:
                return pool, block - first
            first += pool.size
        raise IndexError(block)

    def block(self, pool: str, number: int) -> int | None:
        """Returns the block with a number in the pool of that name; `None` if there is none."""
        first = 0
        for name, size, _ in self.pools:
            if name == pool:
                return first + number if number < size else None
            first += size
        return None

    def _rows(self) -> Iterator[tuple[Pool, int, int, int]]:
        """Yields each pool, its first block, the first line of its rows and the line below them."""
        first = top = 0
        for pool in self.pools:
            top += pool.has_title and pool.size > 0
            stop = top + -(-pool.size // self.row_blocks) * self.lines
            yield pool, first, top, stop
            first, top = first + pool.size, stop


def label_width(pools: tuple[Pool, ...]) -> int:
    """Returns the columns before the cells: for the largest number in a pool, and a gap."""
    return len(str(max([1, *(pool.size for pool in pools)]) - 1)) + 2


def with_largest_cells(
    pools: tuple[Pool, ...], width: int, height: int, max_pitch: int
) -> BlockGrid | None:
    """Returns the grid of `pools` with the largest cells with which it fits.

    Args:
        pools: The pools.
        width: The columns for the grid.
        height: Its lines.
        max_pitch: The most columns of a cell, with the gap after it.

    Returns:
        The grid; `None` if the pools do not fit.
    """
    room = max(width - label_width(pools) + 1, GROUP + 1)
    num_titles = sum(pool.has_title and pool.size > 0 for pool in pools)
    best: BlockGrid | None = None
    for groups in range(1, room // (GROUP + 1) + 1):
        pitch = min((room // groups - 1) // GROUP, max_pitch)
        flat = BlockGrid(pools, groups * GROUP, pitch)
        rows = max(flat.height - num_titles, 1)
        # The characters of a terminal are about twice as high as wide: no cell is upright.
        lines = min((height - num_titles) // rows, max(pitch * 2 // 3, 1))
        if lines > 0 and (best is None or pitch * lines > best.pitch * best.lines):
            best = flat._replace(lines=lines)
    return best


def cell(
    sign: StyledText,
    fill: float,
    number: int,
    grid: BlockGrid,
    sub_line: int,
    *,
    text: str = "",
    own: str = "",
    is_outlined: bool = False,
    has_pattern: bool = False,
) -> Line:
    """Returns a line of a block's cell, with the gap after it.

    Args:
        sign: The sign and the style of the block.
        fill: The share of its slots that are filled; that share of the cell has its colour.
        number: The number of the block, which wide cells show.
        grid: The grid, with the size of a cell.
        sub_line: The number of the line in the cell.
        text: The text of the line, if it is not the first or the last one.
        own: The style of the selected sequence, whose blocks stand out from the others.
        is_outlined: Whether the outermost columns and lines of the cell are an outline.
        has_pattern: Whether its last line tells it apart from a neighbour of the same style.
    """
    glyph, style = sign
    body = f"{style}-fill" if style in OWNER_STYLES else style
    if style.startswith("selected"):
        body = own or style
    width, gap = grid.width, " " * (grid.pitch - grid.width)
    filled = width if fill >= 1 else max(round(width * fill), 1)
    if grid.lines > 1 and sub_line == grid.lines - 1:
        edge = PATTERN if has_pattern else EDGE
        parts = [(edge * filled, f"{body}-edge"), (EDGE * (width - filled), "unheld-edge")]
    elif sub_line > 0:
        text = f"{text:<{width}}"
        parts = [(text[:filled], body), (text[filled:], "unheld")]
    else:
        digits = grid.label - 2
        text = f" {number}" if width >= digits + 3 else ""
        text = f"{text:<{width - 1}}"
        parts = [(glyph, style), (text[: filled - 1], body), (text[filled - 1 :], "unheld")]
    line = tuple(part for part in (*parts, (gap, PLAIN)) if part[0])
    if is_outlined:
        return outlined(line, 0, width, sub_line, grid.lines, *OUTLINE)
    return line


def text_line(text: str, grid: BlockGrid, sub_line: int) -> str:
    """Returns the part of a block's text on a line of its cell; empty after the last part.

    The text is broken at spaces, and stands between the first and the last line of the cell.

    Args:
        text: The text of a block, in which words are one space apart.
        grid: The grid of its cell.
        sub_line: The number of the line in the cell.
    """
    room, num_lines = grid.width - 2, grid.lines - 2
    # No more than the cell can show: the number of a block's tokens is the publisher's.
    lines = _text_lines(text[: num_lines * (room + 1)], room)
    return lines[sub_line - 1] if sub_line <= len(lines) else ""


# A frame asks for each line of each block again.
@lru_cache(maxsize=8_192)
def _text_lines(text: str, room: int) -> tuple[str, ...]:
    return tuple(text[start:end] for start, end in wrap(text, room))
