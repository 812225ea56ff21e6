"""Charts of braille dots and of signs."""

import pytest

from seqtop.text.ascii_output import ascii_form
from seqtop.tui.rendering.bars import ramp
from seqtop.tui.rendering.charts import area_chart, round_top, stacked_cells, stacked_chart


def test_areas_grow_by_dots_two_columns_in_each_cell() -> None:
    assert area_chart([0, 1, 4, 5, 8, None], 2, 8) == [" ⢀⡇", "⢀⣿⡇"]
    assert list(map(ascii_form, area_chart([0, 1, 4, 5, 8, None], 2, 8))) == [" .:", ".#:"]


def test_little_is_not_nothing_and_too_much_fills_the_height() -> None:
    nan, inf = float("nan"), float("inf")
    assert area_chart([1e-9, 99, inf, nan, -1, 0], 1, 10) == ["⣸⡇ "]
    assert area_chart([5, 5], 1, 0) == [" "]


def test_the_highest_line_of_a_chart_has_the_style_of_the_highest_load() -> None:
    assert ramp(["low", "mid", "high"], 4) == ["high", "mid", "mid", "low"]
    assert ramp(["low", "mid", "high"], 1) == ["mid"]


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
