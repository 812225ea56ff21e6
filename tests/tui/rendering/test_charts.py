"""Charts of block characters."""

import pytest

from seqtop.tui.rendering.charts import column_chart, round_top, stacked_cells, stacked_chart


def test_columns_grow_by_eighths() -> None:
    assert column_chart([0, 1, 8, 9, 16, None], 2, 16) == ["   ▁█ ", " ▁███ "]


def test_little_is_not_nothing_and_too_much_fills_the_height() -> None:
    nan, inf = float("nan"), float("inf")
    assert column_chart([1e-9, 99, inf, nan, -1], 1, 10) == ["▁██  "]
    assert column_chart([5], 1, 0) == [" "]


def test_a_cell_shows_what_takes_most_of_it() -> None:
    signs = [("a", "one"), ("b", "two")]
    cells = stacked_cells([0.5, 0.3], signs, 10)
    assert "".join(glyph for glyph, _ in cells) == "aaaaabbb  "
    chart = stacked_chart([[0.5, 0.5], [0.0, 0.0]], signs, 2)
    assert ["".join(glyph for glyph, _ in line) for line in chart] == ["b ", "a "]


@pytest.mark.parametrize(
    ("value", "top"), [(0, 1), (0.9, 1), (1, 1), (1.2, 1.5), (4, 5), (99, 100), (650, 700)]
)
def test_scales_end_at_round_numbers(value: float, top: float) -> None:
    assert round_top(value) == pytest.approx(top)
    assert round_top(float("inf")) == 1
