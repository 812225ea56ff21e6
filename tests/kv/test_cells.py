"""The grid of a map of hashed blocks."""

import pytest

from seqtop.kv.cells import KvGrid, Place, grid
from tests.support.kv_scene import ScriptedKvSource, scene


def grid_of(width: int, height: int) -> KvGrid:
    source = ScriptedKvSource()
    scene(source)
    return grid(source.cache.tiers, width, height)


@pytest.mark.parametrize("size", [(160, 50), (80, 24), (20, 4)])
def test_every_cell_has_one_place_on_the_screen(size: tuple[int, int]) -> None:
    drawn = grid_of(*size)
    places = [Place(medium, cell) for medium, cells in drawn.tiers for cell in range(cells)]
    assert len(places) > 100
    spots = [(drawn.column(place), drawn.line(place)) for place in places]
    assert len(set(spots)) == len(places)
    assert [drawn.place_at(x, y) for x, y in spots] == places


def test_titles_and_the_space_beside_the_cells_are_no_places() -> None:
    drawn = grid_of(80, 24)
    for line in drawn.starts:
        assert drawn.place_at(drawn.label, line) is None
    assert drawn.place_at(0, 1) is None
    assert drawn.place_at(79, drawn.starts[-1] - 1) is None


def test_moving_crosses_titles_and_ends_at_the_edges() -> None:
    drawn = grid_of(80, 24)
    (first, num_first), (second, num_second) = drawn.tiers
    last = Place(second, num_second - 1)
    assert drawn.stepped(Place(first, num_first - 1), 1) == Place(second, 0)
    assert drawn.stepped(Place(second, 0), -1) == Place(first, num_first - 1)
    assert drawn.stepped(Place(first, 0), -1) == Place(first, 0)
    assert drawn.stepped(last, 1) == last
    place, lines = Place(first, 0), set()
    for _ in range(drawn.starts[-1]):
        lines.add(drawn.line(place))
        place = drawn.moved(place, 1)
    assert lines == set(range(drawn.starts[-1])) - set(drawn.starts)
    assert place.medium == second
