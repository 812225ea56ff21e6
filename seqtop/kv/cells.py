"""The tiers of hashed blocks as lines of cells, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from seqtop.kv.cache import CachedKvBlock, Key, KvCache, Tier, merged_tree
from seqtop.text import format as fmt
from seqtop.tui.rendering.bars import row
from seqtop.tui.rendering.cell_map import GROUP, cell_row
from seqtop.tui.rendering.owner_marks import SELECTED, owner_mark
from seqtop.tui.rendering.style import PLAIN, Line, StyledText

FORK = ("≡", "shared")
EMPTIED = ("·", "track")
PATH = SELECTED
UNNAMED = "unknown tier"


class Place(NamedTuple):
    """A cell: its tier, and its number there."""

    medium: str
    cell: int


class KvGrid(NamedTuple):
    """The layout of the cells: for each tier a title and rows."""

    tiers: tuple[tuple[str, int], ...]
    """The name and the number of cells of each tier."""
    per_row: int
    pitch: int
    """The columns from one cell to the next: 2 if all cells are visible then, otherwise 1."""
    label: int
    """The columns for the number at the beginning of a row, and the gap after it."""

    @property
    def starts(self) -> list[int]:
        """The line of each tier's title, and the number of lines as the last item."""
        heights = (1 + -(-cells // self.per_row) for _, cells in self.tiers)
        return [0, *accumulate(heights)]

    def row(self, y: int) -> tuple[str, range]:
        """Returns the tier of line `y` and its cells there: none on a title or below."""
        for (medium, cells), start, end in zip(
            self.tiers, self.starts, self.starts[1:], strict=False
        ):
            if start <= y < end:
                first = (y - start - 1) * self.per_row
                return medium, range(max(first, 0), max(min(first + self.per_row, cells), 0))
        return "", range(0)

    def line(self, place: Place) -> int:
        """Returns the line of a cell."""
        for (medium, _), start in zip(self.tiers, self.starts, strict=False):
            if medium == place.medium:
                return start + 1 + place.cell // self.per_row
        return 0

    def column(self, place: Place) -> int:
        """Returns the column of a cell."""
        column = place.cell % self.per_row
        return self.label + column * self.pitch + column // GROUP

    def place_at(self, x: int, y: int) -> Place | None:
        """Returns the cell at column `x` of line `y`."""
        medium, cells = self.row(y)
        group, rest = divmod(x - self.label, GROUP * self.pitch + 1)
        column = group * GROUP + rest // self.pitch
        if x < self.label or rest >= GROUP * self.pitch or column >= len(cells):
            return None
        return Place(medium, cells[column])

    def moved(self, place: Place, lines: int) -> Place:
        """Returns the cell `lines` below (above, if negative), or the nearest that exists."""
        line = self.line(place)
        target = max(1, min(line + lines, self.starts[-1] - 1))
        medium, cells = self.row(target)
        if not cells:  # the cursor skips titles
            target = max(1, target + (1 if lines > 0 else -1))
            medium, cells = self.row(target)
        if not cells:
            return place
        return Place(medium, cells[min(place.cell % self.per_row, len(cells) - 1)])

    def stepped(self, place: Place, by: int) -> Place:
        """Returns the next (or previous) cell, across the borders of tiers."""
        names = [medium for medium, _ in self.tiers]
        if place.medium not in names:
            return place
        cell, index = place.cell + by, names.index(place.medium)
        if cell < 0 and index > 0:
            medium, cells = self.tiers[index - 1]
            return Place(medium, cells - 1)
        if cell >= self.tiers[index][1] and index + 1 < len(names):
            return Place(names[index + 1], 0)
        return Place(place.medium, max(0, min(cell, self.tiers[index][1] - 1)))


def grid(tiers: dict[str, Tier], width: int, height: int) -> KvGrid:
    """Returns the grid of all tiers in `width` columns, with gaps if that fits into `height`."""
    sizes = tuple((name, len(tier.cells)) for name, tier in tiers.items())
    label = len(str(max((cells for _, cells in sizes), default=1))) + 2
    for pitch in (2, 1):
        per_row = max((width - label + 1) // (GROUP * pitch + 1), 1) * GROUP
        found_grid = KvGrid(sizes, per_row, pitch, label)
        if pitch == 1 or found_grid.starts[-1] <= height:
            break
    return found_grid


def mark(cache: KvCache, block: CachedKvBlock | None, path: set[Key]) -> StyledText:
    """Returns the sign of a cell and its style."""
    if block is None:
        return EMPTIED
    if block.key in path:
        return PATH
    if cache.num_children(block.key) > 1:
        return FORK
    return owner_mark(merged_tree(block.tree).serial)


def line(grid: KvGrid, cache: KvCache, y: int, path: set[Key]) -> Line:
    """Returns line `y`: a tier's name, or the first cell's number and the cells.

    The grid may be older than the cache, so it may have cells that no longer exist.
    """
    medium, cells = grid.row(y)
    tier = cache.tiers.get(medium)
    if tier is None or y >= grid.starts[-1]:
        return ()
    if not cells:
        return title(medium, tier)
    blocks = (tier.cells[cell] if cell < len(tier.cells) else None for cell in cells)
    space = " " * (grid.pitch - 1)
    marks = (mark(cache, block, path) for block in blocks)
    label = f"{cells.start:>{grid.label - 1}} "
    return cell_row(label, (((sign + space, style),) for sign, style in marks))


def title(medium: str, tier: Tier) -> Line:
    """Returns the line above the cells of a tier."""
    return (
        (medium or UNNAMED, "title"),
        (f"  {fmt.plural(tier.num_blocks, 'block')}", "strong"),
        (" known to be cached", "dim"),
    )


def legend(width: int) -> Line:
    """Returns the meanings of the signs."""
    signs: Sequence[tuple[int, StyledText, str]] = (
        (0, ("A", "running"), "prefix tree"),
        (0, PATH, "chosen prefix"),
        (1, FORK, "continued in several ways"),
        (2, EMPTIED, "emptied"),
    )
    return row(
        [
            (rank, ((glyph, style), (" ", PLAIN), (word, "dim")))
            for rank, (glyph, style), word in signs
        ],
        width,
    )
