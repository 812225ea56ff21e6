"""The time axis: its scales and its ticks."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from seqtop.tui.rendering import time_axis


@given(
    st.floats(1.6e9, 1.8e9),
    st.integers(-30, 50),
    st.integers(20, 300),
)
def test_ticks_are_in_sight_apart_and_in_order(start: float, zoom_level: int, width: int) -> None:
    shown = time_axis.window_from(start, zoom_level, width)
    assert shown.start <= start < shown.start + shown.cell * 1.001 + 1e-6
    marks = time_axis.ticks(shown)
    columns = [tick.column for tick in marks]
    assert columns == sorted(set(columns))
    assert all(0 <= column < width for column in columns)
    for left, right in pairwise(marks):
        assert right.column - left.column > len(left.label)
    assert len(time_axis.labels(marks, width)) == width


@given(st.floats(1e-3, 1e7), st.integers(10, 300))
def test_everything_fits_and_little_is_left_free(length: float, width: int) -> None:
    cell = time_axis.scale(time_axis.zoom_level_for(length, width))
    assert cell * width >= length * 0.999
    assert cell * width <= max(length * 1.4, 1.1e-4 * width)
