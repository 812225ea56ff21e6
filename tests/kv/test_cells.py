"""The grid of a map of hashed blocks."""

import pytest

from seqtop.kv.cells import grid
from tests.support.kv_scene import ScriptedKvSource, scene


@pytest.mark.parametrize(("size", "pitch"), [((160, 50), 2), ((80, 24), 2), ((80, 8), 1)])
def test_cells_have_gaps_if_all_are_visible(size: tuple[int, int], pitch: int) -> None:
    source = ScriptedKvSource()
    scene(source)
    drawn = grid(source.cache.tiers, *size)
    assert [(pool.name, pool.size) for pool in drawn.pools] == [("GPU", 126), ("CPU", 55)]
    assert drawn.pitch == pitch
    assert drawn.column(drawn.blocks(1)[-1]) < size[0]
