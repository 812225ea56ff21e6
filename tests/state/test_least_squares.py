"""Least squares without negative coefficients."""

import random

import pytest

from seqtop.state.least_squares import solve_non_negative

WIDTH = 4


@pytest.mark.parametrize("seed", range(40))
def test_no_coefficient_can_be_changed_for_a_smaller_error(seed: int) -> None:
    """These are the conditions of Karush, Kuhn and Tucker, which only the least error meets."""
    rng = random.Random(seed)
    unused = seed % 2
    rows = [
        [1.0, float(rng.randrange(500)), float(rng.randrange(60)), float(rng.random() < 0.2)]
        for _ in range(rng.randrange(8, 60))
    ]
    costs = [rng.choice((-1.0, 0.0, 1.0)) * scale for scale in (1.0, 0.01, 0.1, 1.0)]
    for row in rows:
        row[WIDTH - 1] *= 1 - unused
    values = [
        sum(cost * own for cost, own in zip(costs, row, strict=True)) + rng.gauss(0, 0.1)
        for row in rows
    ]
    products = [[sum(row[i] * row[j] for row in rows) for j in range(WIDTH)] for i in range(WIDTH)]
    targets = [
        sum(row[i] * value for row, value in zip(rows, values, strict=True)) for i in range(WIDTH)
    ]
    found = solve_non_negative(products, targets)
    assert all(value >= 0 for value in found.values())
    for i in range(WIDTH):
        slope = sum(products[i][j] * value for j, value in found.items()) - targets[i]
        if found.get(i):
            assert slope == pytest.approx(0, abs=1e-6 * abs(targets[i]) + 1e-6)
        else:
            assert slope >= -1e-6 * abs(targets[i]) - 1e-6


def test_columns_of_which_nothing_is_known_have_no_coefficient() -> None:
    assert solve_non_negative([[0.0, 0.0], [0.0, 4.0]], [0.0, 8.0]) == {1: 2.0}
    assert solve_non_negative([[0.0]], [0.0]) == {}
    assert solve_non_negative([[4.0, 4.0], [4.0, 4.0]], [8.0, 8.0]) in ({0: 2.0}, {1: 2.0})
