"""The tiers of hashed blocks as lines of cells, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from seqtop.kv.cache import CachedKvBlock, Key, KvCache, Tier, merged_tree
from seqtop.text import format as fmt
from seqtop.tui.rendering.bars import row
from seqtop.tui.rendering.block_grid import (
    BlockGrid,
    Pool,
    cell,
    label_width,
    text_line,
    with_largest_cells,
)
from seqtop.tui.rendering.cell_map import (
    GROUP,
    OUTLINED,
    cell_row,
    has_room_for_outline,
)
from seqtop.tui.rendering.owner_marks import OWNER_STYLES, SELECTED, OwnerMarks
from seqtop.tui.rendering.style import PLAIN, Line, StyledText

FORK = "≡"
"""The sign of a block with several continuations; its style is that of its tree."""
EMPTIED = ("·", "track")
PATH = SELECTED
UNNAMED = "unknown tier"
MAX_PITCH = 32
"""The most columns of a cell, with the gap after it."""
LEAST_ROOM = 6
"""The columns in a cell from which on it shows the block's token ids."""


def grid(tiers: dict[str, Tier], width: int, height: int) -> BlockGrid:
    """Returns the grid of all tiers in `width` columns, with the largest cells that fit.

    If not all cells fit into `height` lines, they have one column.
    """
    pools = tuple(Pool(medium, len(tier.cells)) for medium, tier in tiers.items())
    room = max(width - label_width(pools) + 1, GROUP + 1)
    narrow = BlockGrid(pools, room // (GROUP + 1) * GROUP)
    return with_largest_cells(pools, width, height, MAX_PITCH) or narrow


def mark(
    cache: KvCache, block: CachedKvBlock | None, path: set[Key], marks: OwnerMarks
) -> StyledText:
    """Returns the sign of a cell and its style."""
    if block is None:
        return EMPTIED
    if block.key in path:
        return PATH
    return _sign(cache, block, marks)


def _sign(cache: KvCache, block: CachedKvBlock, marks: OwnerMarks) -> StyledText:
    """Returns the sign of a block that is not on the chosen path, in the style of its tree."""
    letter, style = marks.mark(merged_tree(block.tree).serial)
    return (FORK if cache.num_children(block.key) > 1 else letter), style


def trees(grid: BlockGrid, cache: KvCache, y: int) -> tuple[int | None, ...]:
    """Returns the serial number of the tree of each cell on line `y`; `None` for an empty one."""
    return tuple(
        None if block is None else merged_tree(block.tree).serial
        for block in _blocks(grid, cache, y)
    )


def _blocks(grid: BlockGrid, cache: KvCache, y: int) -> list[CachedKvBlock | None]:
    """Returns the blocks of the cells on line `y`.

    The grid may be older than the cache, so it may have cells that no longer exist.
    """
    cells = grid.blocks(y)
    if not cells:
        return []
    pool, first = grid.pool_of(cells.start)
    tier = cache.tiers.get(pool.name)
    blocks = [] if tier is None else tier.cells[first : first + len(cells)]
    return [*blocks, *[None] * (len(cells) - len(blocks))]


def line(grid: BlockGrid, cache: KvCache, y: int, path: set[Key], marks: OwnerMarks) -> Line:
    """Returns line `y`: a tier's name, or the first cell's number and the cells."""
    if (pool := grid.title(y)) is not None:
        return title(pool.name, cache.tiers[pool.name]) if pool.name in cache.tiers else ()
    cells = grid.blocks(y)
    if not cells:
        return ()
    pool, first = grid.pool_of(cells.start)
    if pool.name not in cache.tiers:
        return ()
    sub_line = y - grid.line(cells.start)
    label = f"{first if sub_line == 0 else '':>{grid.label - 1}} "
    if grid.width == 1:
        return cell_row(
            label, [(mark(cache, block, path, marks),) for block in _blocks(grid, cache, y)]
        )
    return cell_row(
        label,
        [
            _cell(grid, cache, block, number, sub_line, path, marks)
            for number, block in enumerate(_blocks(grid, cache, y), first)
        ],
    )


def _cell(
    grid: BlockGrid,
    cache: KvCache,
    block: CachedKvBlock | None,
    number: int,
    sub_line: int,
    path: set[Key],
    marks: OwnerMarks,
) -> Line:
    """Returns a line of the cell of a block, with the gap after it."""
    if block is None:
        return cell((EMPTIED[0], "unheld"), 1.0, number, grid, sub_line)
    sign = _sign(cache, block, marks)
    has_outlines = has_room_for_outline(grid.width, grid.lines)
    is_chosen = block.key in path
    room, text = grid.width - 2, ""
    if room >= LEAST_ROOM and 0 < sub_line < grid.lines - 1:
        ids = " ".join(map(str, (block.token_ids or ())[: room * grid.lines]))
        text = f" {text_line(ids, grid, sub_line)}"
    return cell(
        PATH if is_chosen and not has_outlines else sign,
        1.0,
        number,
        grid,
        sub_line,
        text=text,
        own=sign[1],
        is_outlined=is_chosen and has_outlines,
    )


def title(medium: str, tier: Tier) -> Line:
    """Returns the line above the cells of a tier."""
    return (
        (medium or UNNAMED, "title"),
        (f"  {fmt.plural(tier.num_blocks, 'block')}", "strong"),
        (" known to be cached", "dim"),
    )


def legend(width: int, grid: BlockGrid) -> Line:
    """Returns the meanings of the signs in the cells of a grid."""
    is_outlined = has_room_for_outline(grid.width, grid.lines)
    signs: Sequence[tuple[int, StyledText, str]] = (
        (0, ("A", OWNER_STYLES[0]), "prefix tree"),
        (0, OUTLINED if is_outlined else PATH, "chosen prefix"),
        (1, (FORK, OWNER_STYLES[0]), "continued in several ways"),
        (2, EMPTIED, "emptied"),
    )
    return row(
        [
            (rank, ((glyph, style), (" ", PLAIN), (word, "dim")))
            for rank, (glyph, style), word in signs
        ],
        width,
    )
