"""The grid of all maps of blocks lays them out as the two grids before it did."""

from hypothesis import assume, given
from hypothesis import strategies as st

from seqtop.kv import cells as kv_cells
from seqtop.kv.cache import Tier
from seqtop.tui.rendering.block_grid import BlockGrid, Pool
from seqtop.tui.screens.blocks import cells as pool_cells

widths = st.integers(1, 170)
heights = st.integers(0, 60)


@given(st.integers(1, 3_000), st.integers(0, 500), widths, heights, st.booleans(), st.data())
def test_it_equals_the_grid_of_the_pool(
    num_device: int, num_host: int, width: int, height: int, single: bool, data: st.DataObject
) -> None:
    old = pool_cells.grid(num_device, num_host, width, height, single=single)
    pools = Pool("device", num_device, has_title=False), Pool("host", num_host)
    new = BlockGrid(pools, old.per_row, old.pitch, old.lines, old.span)
    assert (new.label, new.width, new.row_blocks) == (old.label, old.width, old.row_blocks)
    assert new.height == old.height
    lines = st.integers(-2, old.height + 2)
    for y in data.draw(st.lists(lines, max_size=20)):
        assert new.blocks(y) == old.blocks(y)
        assert new.cells(y) == old.cells(y)
        assert (new.title(y) is not None) == (num_host > 0 and y == old.device_lines)
        for x in range(0, width + 3, 3):
            assert new.cell_at(x, y) == old.cell_at(x, y)
    for block in data.draw(st.lists(st.integers(0, num_device + num_host - 1), max_size=20)):
        assert new.line(block) == old.line(block)
        assert new.column(block) == old.column(block)
        assert new.cell(block) == old.cell(block)
        for rows in (-40, -2, -1, 0, 1, 2, 40):
            assert new.moved(block, rows) == old.moved(block, rows)


@given(st.lists(st.integers(1, 400), max_size=5), widths, heights, st.data())
def test_it_equals_the_grid_of_tiers(
    sizes: list[int], width: int, height: int, data: st.DataObject
) -> None:
    assume(max(sizes, default=0) not in {1, 10, 100})  # where the label was too wide
    tiers = {f"t{index}": Tier(cells=[None] * size) for index, size in enumerate(sizes)}
    old = kv_cells.grid(tiers, width, height)
    new = BlockGrid(tuple(Pool(*tier) for tier in old.tiers), old.per_row, old.pitch)
    names = [name for name, _ in old.tiers]
    assert new.height == old.starts[-1]
    assert new.num_blocks == sum(sizes)
    for y in range(-1, new.height + 2):
        medium, numbers = old.row(y)
        if y >= 0:
            blocks = [new.pool_of(block) for block in new.blocks(y)]
            assert [(pool.name, number) for pool, number in blocks] == [
                (medium, number) for number in numbers
            ]
        pool = new.title(y)
        assert (None if pool is None else pool.name) == (medium if y in old.starts[:-1] else None)
        for x in range(0, width + 3, 3):
            place = old.place_at(x, y)
            cell = new.cell_at(x, y)
            if y >= 0:
                assert cell == (None if place is None else range(b := new.block(*place), b + 1))
    if not sizes:
        return
    for block in data.draw(st.lists(st.integers(0, new.num_blocks - 1), max_size=20)):
        pool, number = new.pool_of(block)
        place = kv_cells.Place(pool.name, number)
        assert new.block(*place) == block
        assert new.line(block) == old.line(place)
        assert new.column(block) == old.column(place)
        for rows in (-40, -2, -1, 0, 1, 2, 40):
            assert new.block(*old.moved(place, rows)) == new.moved(block, rows)
        for by in (-1, 1):
            stepped = max(0, min(block + by, new.num_blocks - 1))
            assert new.block(*old.stepped(place, by)) == stepped
    assert new.block("other", 0) is None
    assert new.block(names[0], sizes[0]) is None
