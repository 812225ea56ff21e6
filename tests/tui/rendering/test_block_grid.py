"""The grid of the blocks of several pools: titles, and moves across them."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.tui.rendering import block_grid
from seqtop.tui.rendering.block_grid import BlockGrid, Pool, text_line
from seqtop.tui.rendering.wrapped_text import wrap

POOLS = (Pool("GPU", 126), Pool("empty", 0), Pool("CPU", 55))


@pytest.fixture(params=[(2, 1, 1), (1, 1, 4), (5, 3, 1)])
def grid(request: pytest.FixtureRequest) -> BlockGrid:
    pitch, lines, span = request.param
    return BlockGrid(POOLS, 30, pitch, lines, span)


def test_every_block_is_in_one_cell(grid: BlockGrid) -> None:
    blocks = range(grid.num_blocks)
    cells = {(grid.column(block), grid.line(block)): grid.cell(block) for block in blocks}
    assert sorted(block for cell in cells.values() for block in cell) == [*blocks]
    assert [grid.cell_at(x, y) for x, y in cells] == [*cells.values()]


def test_titles_and_the_space_beside_the_cells_have_no_blocks(grid: BlockGrid) -> None:
    titles = [y for y in range(-1, grid.height + 1) if grid.title(y) is not None]
    assert [grid.title(y).name for y in titles] == ["GPU", "CPU"]
    for y in (-1, *titles, grid.height):
        assert grid.cell_at(grid.label, y) is None
        assert not grid.blocks(y)
    assert grid.cell_at(0, 1) is None
    assert grid.cell_at(29 * grid.pitch + grid.label, grid.height - 1) is None


def test_blocks_are_numbered_across_pools(grid: BlockGrid) -> None:
    for block in range(grid.num_blocks):
        pool, number = grid.pool_of(block)
        assert grid.block(pool.name, number) == block
    assert grid.pool_of(126) == (POOLS[2], 0)
    assert grid.block("CPU", 55) is None
    assert grid.block("DISK", 0) is None
    for block in (-1, grid.num_blocks):
        with pytest.raises(IndexError):
            grid.pool_of(block)


def test_moves_cross_titles_and_end_at_the_edges(grid: BlockGrid) -> None:
    block, lines = 7, set()
    for _ in range(grid.height):
        lines.add(grid.line(block))
        block = grid.moved(block, 1)
    tops = {grid.line(number) for number in range(grid.num_blocks)}
    assert lines == tops
    assert grid.pool_of(block)[0].name == "CPU"
    assert grid.moved(block, 1) == block
    assert grid.line(grid.moved(block, -100)) == grid.line(0)
    assert grid.moved(7, -1) == 7


def test_without_blocks_there_are_no_lines() -> None:
    grid = BlockGrid((Pool("empty", 0),), 30)
    assert grid.height == 0
    assert grid.title(0) is None


def test_a_number_is_not_broken_at_the_end_of_a_line() -> None:
    ids = "508 356 381 13"
    grid = BlockGrid((Pool("device", 1),), 1, pitch=12, lines=5)
    lines = [text_line(ids, grid, sub_line).strip() for sub_line in (1, 2, 3)]
    assert lines == ["508 356", "381 13", ""]


@given(st.lists(st.text("ab", min_size=1), min_size=1), st.integers(9, 16), st.integers(3, 6))
def test_only_as_much_of_a_text_is_broken_as_its_cell_shows(
    words: list[str], pitch: int, lines: int
) -> None:
    """A publisher chooses how long the texts and the token ids of its blocks are."""
    grid = BlockGrid((Pool("device", 1),), 1, pitch=pitch, lines=lines)
    text, room, sizes = " ".join(words), grid.width - 2, []

    def watched(text: str, width: int) -> list[tuple[int, int]]:
        sizes.append(len(text))
        return wrap(text, width)

    block_grid._text_lines.cache_clear()
    with patch.object(block_grid, "wrap", watched):
        shown = [text_line(text, grid, sub_line) for sub_line in range(1, lines - 1)]
    whole = [text[start:end] for start, end in wrap(text, room)][: lines - 2]
    assert shown == whole + [""] * (len(shown) - len(whole))
    assert max(sizes) <= (lines - 2) * (room + 1)
