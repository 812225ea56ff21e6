"""The tiers of hashed blocks as lines of cells, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from seqtop.kv.cache import CachedKvBlock, Key, KvCache, Tier, merged_tree
from seqtop.text import format as fmt
from seqtop.tui.rendering.bars import row
from seqtop.tui.rendering.block_grid import BlockGrid, Pool, label_width
from seqtop.tui.rendering.cell_map import GROUP, cell_row
from seqtop.tui.rendering.owner_marks import SELECTED, OwnerMarks
from seqtop.tui.rendering.style import PLAIN, Line, StyledText

FORK = ("≡", "shared")
EMPTIED = ("·", "track")
PATH = SELECTED
UNNAMED = "unknown tier"


def grid(tiers: dict[str, Tier], width: int, height: int) -> BlockGrid:
    """Returns the grid of all tiers in `width` columns, with gaps if that fits into `height`."""
    pools = tuple(Pool(medium, len(tier.cells)) for medium, tier in tiers.items())
    room = width - label_width(pools) + 1
    wide, narrow = (
        BlockGrid(pools, max(room // (GROUP * pitch + 1), 1) * GROUP, pitch) for pitch in (2, 1)
    )
    return wide if wide.height <= height else narrow


def mark(
    cache: KvCache, block: CachedKvBlock | None, path: set[Key], marks: OwnerMarks
) -> StyledText:
    """Returns the sign of a cell and its style."""
    if block is None:
        return EMPTIED
    if block.key in path:
        return PATH
    if cache.num_children(block.key) > 1:
        return FORK
    return marks.mark(merged_tree(block.tree).serial)


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
    space = " " * (grid.pitch - 1)
    signs = (mark(cache, block, path, marks) for block in _blocks(grid, cache, y))
    label = f"{first:>{grid.label - 1}} "
    return cell_row(label, (((sign + space, style),) for sign, style in signs))


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
