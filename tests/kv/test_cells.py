"""The grid of a map of hashed blocks."""

import itertools

import pytest

from seqtop.kv.cache import merged_tree
from seqtop.kv.cells import grid, mark, trees
from seqtop.tui.rendering.owner_marks import OwnerMarks
from tests.support.kv_scene import ScriptedKvSource, scene


def test_neighbours_of_different_trees_differ_in_colour() -> None:
    source = ScriptedKvSource()
    scene(source)
    drawn, marks = grid(source.cache.tiers, 80, 24), OwnerMarks()
    rows = [trees(drawn, source.cache, y) for y in range(drawn.height)]
    marks.arrange(rows)
    for row in rows:
        for one, other in itertools.pairwise(row):
            if one is not None and other is not None and one != other:
                assert marks.mark(one)[1] != marks.mark(other)[1]


@pytest.mark.parametrize(
    ("size", "pitch", "lines"),
    [((400, 90), 19, 8), ((160, 50), 15, 2), ((80, 24), 7, 1), ((80, 4), 1, 1)],
)
def test_cells_are_as_large_as_fits(size: tuple[int, int], pitch: int, lines: int) -> None:
    source = ScriptedKvSource()
    scene(source)
    drawn = grid(source.cache.tiers, *size)
    assert [(pool.name, pool.size) for pool in drawn.pools] == [("GPU", 126), ("CPU", 55)]
    assert (drawn.pitch, drawn.lines) == (pitch, lines)
    assert drawn.column(drawn.blocks(1)[-1]) < size[0]


def test_a_block_with_several_continuations_has_the_colour_of_its_tree() -> None:
    source = ScriptedKvSource()
    scene(source)
    cache, marks = source.cache, OwnerMarks()
    blocks = [block for tier in cache.tiers.values() for block in tier.cells if block is not None]
    forks = [block for block in blocks if cache.num_children(block.key) > 1]
    assert forks
    for block in forks:
        assert mark(cache, block, set(), marks) == (
            "≡",
            marks.mark(merged_tree(block.tree).serial)[1],
        )
