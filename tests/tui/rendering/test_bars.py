"""Bars, sparklines, rows."""

import math

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from seqtop.text.sanitize import safe_text
from seqtop.tui.rendering.bars import bar, crop_left, row, rows, sparkline, spread, tail
from seqtop.tui.rendering.style import fitted, line_width, plain

FIGURES = st.floats() | st.integers(-10, 2**64)
WIDTHS = st.integers(0, 40)
SAFE = st.text().map(safe_text)


@given(WIDTHS, FIGURES, st.lists(FIGURES, max_size=3))
def test_a_bar_is_as_wide_as_it_should_be(width: int, total: float, amounts: list[float]) -> None:
    line = bar(width, total, [(amount, "x", "=") for amount in amounts])
    assert line_width(line) == width


@given(st.integers(1, 40), st.integers(1, 5_000), st.data())
def test_a_bar_is_full_only_when_all_is_there(width: int, total: int, data: st.DataObject) -> None:
    done = data.draw(st.integers(0, total))
    text = plain(bar(width, total, [(done, "x", "━")]))
    assert ("━" * width == text) == (done == total)
    halves = 2 * text.count("━") + text.count("╸")
    assert halves == int(2 * width * done / total)


def test_a_bar_shows_its_parts() -> None:
    line = bar(10, 100, [(20, "cached", "═"), (35, "computed", "━")])
    assert line == (("══", "cached"), ("━━━", "computed"), ("╸", "computed"), ("────", "track"))


@given(st.lists(st.floats() | st.just(0.0)), WIDTHS)
def test_a_sparkline_never_fails(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) == min(len(values), width)


def test_a_sparkline_is_scaled_to_its_ceiling() -> None:
    assert sparkline([0, 0.5, 1], 3) == "▁▄▇"
    assert sparkline([0, 0.5, 1], 2, ceiling=2) == "▃▄"
    assert sparkline([1, 2, math.nan], 0) == ""
    assert sparkline([0, math.nan, 1], 3) == "▁ ▇"


@given(SAFE, WIDTHS)
def test_the_left_is_cropped_to_the_width(text: str, width: int) -> None:
    kept = crop_left(text, width)
    assert text.endswith(kept)
    assert cell_len(kept) <= width
    if cell_len(text) <= width:
        assert cell_len(kept) == cell_len(text)


@given(SAFE, SAFE, st.integers(1, 40))
def test_a_tail_fills_its_width_and_ends_with_the_newest(old: str, new: str, width: int) -> None:
    line = tail(old, new, width)
    assert line_width(line) == width
    assert plain(line).rstrip(" ").endswith(crop_left(new, width - 1).rstrip(" ")) or not new


@given(SAFE, SAFE, WIDTHS)
def test_a_fitted_line_is_exactly_as_wide(one: str, two: str, width: int) -> None:
    assert line_width(fitted(((one, ""), (two, "dim")), width)) == width


def test_rows_drop_what_matters_least_and_lines_wrap() -> None:
    items = [(0, (("aaaa", ""),)), (2, (("bbbb", ""),)), (1, (("cccc", ""),))]
    assert plain(row(items, 16)) == "aaaa  bbbb  cccc"
    assert plain(row(items, 15)) == "aaaa  cccc"
    assert plain(row(items, 3)) == "aaaa"
    assert [plain(line) for line in rows((item for _, item in items), 12, gap=2)] == [
        "aaaa  bbbb",
        "cccc",
    ]
    assert plain(spread((("a", ""),), (("b", ""),), 5)) == "a   b"
