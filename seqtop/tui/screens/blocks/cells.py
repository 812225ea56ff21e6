"""The block pool as lines of cells, as pure functions.

A block that one sequence holds is filled with that sequence's colour and shows its letter, so that
neighbours differ without colour too. Other states have signs of their own.
"""

import string
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from seqtop import format as fmt
from seqtop.state.block_index import BlockIndex
from seqtop.tui.rendering.bars import row
from seqtop.tui.rendering.cell_map import GROUP, cell_row
from seqtop.tui.rendering.style import PLAIN, Line, StyledText

LETTERS = string.ascii_uppercase + string.ascii_lowercase
OWNER_STYLES = tuple(f"owner-{number}" for number in range(6))
"""The styles of owners, which fill the cells. With 52 letters there are 156 different pairs."""
MAX_PITCH = 8
"""The most columns of a cell."""

FREE = ("·", "track")
CACHED = ("°", "cached")
SHARED = ("≡", "shared")
SWAPPED = ("⇄", "swapped")
RESERVED = ("∅", "dim")
SELECTED = ("█", "selected")
SELECTED_SHARED = ("▓", "selected-shared")


class BlockGrid(NamedTuple):
    """The layout of the cells: rows of the device's pool, a title, rows of the host's pool."""

    num_device: int
    num_host: int
    per_row: int
    pitch: int
    """The columns of a cell: as many as let the whole pool be visible, at most `MAX_PITCH`."""
    label: int
    """The columns for the number at the beginning of a row, and the gap after it."""

    def fits(self, index: BlockIndex) -> bool:
        """Returns whether the grid is for pools of the sizes in `index`."""
        return (self.num_device, self.num_host) == (index.num_device, index.num_host)

    @property
    def device_rows(self) -> int:
        return -(-self.num_device // self.per_row)

    @property
    def height(self) -> int:
        """The lines of the whole grid."""
        host_rows = -(-self.num_host // self.per_row)
        return self.device_rows + (host_rows + 1 if host_rows else 0)

    def blocks(self, y: int) -> range:
        """Returns the blocks on line `y`; none on the host's title and below the end."""
        if y < self.device_rows:
            start, end = y * self.per_row, self.num_device
        else:
            start = self.num_device + (y - self.device_rows - 1) * self.per_row
            end = self.num_device + self.num_host
        is_title = y >= self.device_rows and start < self.num_device
        return range(0) if y < 0 or is_title else range(start, min(start + self.per_row, end))

    def line(self, block: int) -> int:
        """Returns the line of a block."""
        if block < self.num_device:
            return block // self.per_row
        return self.device_rows + 1 + (block - self.num_device) // self.per_row

    def block_at(self, x: int, y: int) -> int | None:
        """Returns the block at column `x` of line `y`."""
        group, rest = divmod(x - self.label, GROUP * self.pitch + 1)
        column = group * GROUP + rest // self.pitch
        row_of_blocks = self.blocks(y)
        if x < self.label or rest >= GROUP * self.pitch or column >= len(row_of_blocks):
            return None
        return row_of_blocks[column]

    def moved(self, block: int, lines: int) -> int:
        """Returns the block `lines` below (above, if negative), or the nearest that exists."""
        line = self.line(block)
        column = block - self.blocks(line).start
        target = max(0, min(line + lines, self.height - 1))
        if not self.blocks(target):  # the cursor skips the host's title
            target += 1 if lines > 0 else -1
        reached = self.blocks(target)
        return reached[min(column, len(reached) - 1)] if reached else block


def grid(num_device: int, num_host: int, width: int, height: int) -> BlockGrid:
    """Returns the grid of two pools in `width` columns, with the widest cells that fit.

    If the pools do not fit into `height` lines, cells have one column.
    """
    label = len(str(max(num_device, num_host, 1) - 1)) + 2
    room = width - label + 1
    for pitch in range(min(MAX_PITCH, max((room - 1) // GROUP, 1)), 1, -1):
        per_row = max(room // (GROUP * pitch + 1), 1) * GROUP
        found = BlockGrid(num_device, num_host, per_row, pitch, label)
        if found.height <= height:
            return found
    per_row = max(room // (GROUP + 1), 1) * GROUP
    return BlockGrid(num_device, num_host, per_row, 1, label)


def owner_mark(seq_id: int) -> StyledText:
    """Returns the letter of a sequence and its style."""
    return LETTERS[seq_id % len(LETTERS)], OWNER_STYLES[seq_id % len(OWNER_STYLES)]


def mark(index: BlockIndex, block: int, selected: int | None) -> StyledText:
    """Returns the sign of a block and its style."""
    owners = index.owners(block)
    if block < index.num_reserved:
        return RESERVED
    if not owners:
        return CACHED if block in index.cached else FREE
    if selected in owners:
        return SELECTED if len(owners) == 1 else SELECTED_SHARED
    if len(owners) > 1:
        return SHARED
    return SWAPPED if block >= index.num_device else owner_mark(next(iter(owners)))


def pool_line(grid: BlockGrid, index: BlockIndex, y: int, selected: int | None) -> Line:
    """Returns line `y` of the map: the first block's number, then the cells."""
    blocks = grid.blocks(y)
    if not blocks:
        is_title = bool(grid.num_host) and y == grid.device_rows
        return ((" " * grid.label + "host memory, to swap to", "dim"),) if is_title else ()
    first = blocks.start - (grid.num_device if blocks.start >= grid.num_device else 0)
    marks = (mark(index, block, selected) for block in blocks)
    return cell_row(first, grid.label, grid.pitch, marks)


def cursor_column(grid: BlockGrid, block: int) -> int:
    """Returns the column of a block's cell in its line."""
    column = block - grid.blocks(grid.line(block)).start
    return grid.label + column * grid.pitch + column // GROUP


def summary(index: BlockIndex, counts: Mapping[str, int | None], width: int) -> Line:
    """Returns the number of blocks of each kind."""
    figures: list[tuple[int, Line]] = [
        (0, ((fmt.count(index.num_device), "strong"), (" blocks", "dim")))
    ]
    for name, number in counts.items():
        if number is not None:
            figures.append((1, ((fmt.count(number), "strong"), (f" {name}", "dim"))))
    return row(figures, width, gap=3)


def legend(
    index: BlockIndex, free_word: str, width: int, *, publishes_cached: bool = False
) -> Line:
    """Returns the meanings of the signs that can occur."""
    signs: Iterable[tuple[int, StyledText, str, bool]] = (
        (0, ("A", OWNER_STYLES[0]), "owner", True),
        (1, SELECTED, "selected", True),
        (2, SELECTED_SHARED, "and shared", True),
        (1, SHARED, "shared", True),
        (1, CACHED, "cached", publishes_cached),
        (0, FREE, free_word, True),
        (2, SWAPPED, "swapped", index.num_host > 0),
        (3, RESERVED, "reserved", index.num_reserved > 0),
    )
    return row(
        [
            (rank, ((glyph, style), (" ", PLAIN), (word, "dim")))
            for rank, (glyph, style), word, is_used in signs
            if is_used
        ],
        width,
    )
