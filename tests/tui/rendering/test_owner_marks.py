"""The styles that tell owners apart on a map of cells."""

import random
from itertools import combinations, pairwise

import pytest

from seqtop.tui.rendering.owner_marks import OWNER_STYLES, OwnerMarks, owner_mark

Rows = list[tuple[int | None, ...]]
NUM = len(OWNER_STYLES)


def looks(marks: OwnerMarks, owner: int) -> tuple[str, bool]:
    return marks.mark(owner)[1], marks.has_pattern(owner)


def neighbours(rows: Rows) -> set[tuple[int, int]]:
    pairs = [pair for row in rows for pair in pairwise(row)]
    for above, below in pairwise(rows):
        pairs += zip(above, below, strict=False)
    return {(one, other) for one, other in pairs if None not in (one, other) and one != other}


@pytest.mark.parametrize(
    "rows",
    [
        [(0, NUM, 2 * NUM)],
        [(0,), (NUM,)],
        [(3, None, 3 + NUM), (3 + NUM, 3, 3 + 2 * NUM)],
        [tuple(range(0, 8 * NUM, NUM)), tuple(range(NUM, 9 * NUM, NUM))],
    ],
)
def test_neighbours_have_different_styles(rows: Rows) -> None:
    marks = OwnerMarks()
    marks.arrange(rows)
    for one, other in neighbours(rows):
        assert marks.mark(one)[1] != marks.mark(other)[1]
    assert not any(marks.has_pattern(owner) for row in rows for owner in row if owner is not None)


def test_owners_have_the_styles_of_their_numbers_and_later_ones_those_that_are_free() -> None:
    marks = OwnerMarks()
    assert not marks.arrange([(1, 2, None), (3, 4, NUM + 1)])
    assert [marks.mark(owner) for owner in (1, 2, 3, 4)] == [*map(owner_mark, (1, 2, 3, 4))]
    styles = {marks.mark(owner)[1] for owner in (1, 2, 3, 4, NUM + 1)}
    assert len(styles) == 5


def test_an_owner_keeps_its_style_until_it_touches_an_older_one_of_that_style() -> None:
    marks = OwnerMarks()
    marks.arrange([(0, NUM)])
    given = marks.mark(NUM)
    assert given != owner_mark(NUM)
    assert not marks.arrange([(0, None, NUM)])
    assert not marks.arrange([(owner, None) for owner in range(NUM + 1)])
    assert marks.mark(NUM) == given
    ((older, newer),) = (
        (one, other)
        for one, other in combinations(range(NUM + 1), 2)
        if marks.mark(one)[1] == marks.mark(other)[1]
    )
    before = marks.mark(older)
    assert marks.arrange([(older, newer)])
    assert marks.mark(older) == before
    assert marks.mark(newer)[1] != before[1]


def test_a_pattern_tells_owners_apart_where_styles_run_out() -> None:
    # Each of so many owners is beside each other one.
    owners = range(NUM + 1)
    rows: Rows = [(one, other) for one in owners for other in owners]
    marks = OwnerMarks()
    marks.arrange([row for pair in rows for row in (pair, (None, None))])
    assert len({looks(marks, owner) for owner in owners}) == NUM + 1
    assert [owner for owner in owners if marks.has_pattern(owner)] == [NUM]


def test_styles_on_a_map_of_many_owners_clash_seldom_and_do_not_flicker() -> None:
    chance = random.Random(5)
    rows: Rows = [tuple(chance.choice([None, *range(40)]) for _ in range(10)) for _ in range(6)]
    marks = OwnerMarks()
    marks.arrange(rows)
    assert all(looks(marks, one) != looks(marks, other) for one, other in neighbours(rows))
    assert not marks.arrange(rows)
