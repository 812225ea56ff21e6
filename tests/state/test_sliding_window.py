"""Percentiles, the histogram and the mean of a sliding window."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.state import sliding_window
from seqtop.state.sliding_window import SlidingWindow


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=60))
def test_percentiles_are_those_of_the_textbook(values: list[float]) -> None:
    window = SlidingWindow()
    for value in values:
        window.add(0.0, value)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for p in (50, 90, 99):
        assert window.percentile(p) == pytest.approx(cuts[p - 1])
    assert sum(window.histogram(16)) == len(values)


def test_a_window_slides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliding_window, "MAX_IN_WINDOW", 50)
    monkeypatch.setattr(sliding_window, "WINDOW", 10.0)
    chance, window, added = random.Random(1), SlidingWindow(), []
    for moment in range(200):
        added.append((float(moment) / 3, chance.random()))
        window.add(*added[-1])
        window.expire(moment / 3)
        held = sorted(value for time, value in added[-50:] if time > moment / 3 - 10)
        assert window.percentile(0) == held[0]
        assert window.percentile(100) == held[-1] == window.figures().largest
        assert window.figures().num == len(window) == len(held)
        assert window.mean() == pytest.approx(statistics.fmean(held))
    window.expire(1e9)
    assert math.isnan(window.percentile(50))
    assert window.figures().num == 0
    assert window.histogram(4) == [0] * 4


def test_a_sample_is_in_the_window_for_a_minute() -> None:
    window = SlidingWindow()
    window.add(100.0, 1.0)
    window.expire(159.5)
    assert len(window) == 1
    window.expire(160.0)
    assert len(window) == 0


def test_the_figures_are_percentiles_in_order() -> None:
    window = SlidingWindow()
    assert math.isnan(window.mean())
    assert math.isnan(window.percentile(50))
    assert all(map(math.isnan, window.figures()[1:]))
    window.extend([0.0] * 101, range(100, -1, -1))
    assert window.figures() == (101, 50.0, 90.0, 99.0, 100.0)


@pytest.mark.parametrize(
    ("values", "num_bins", "counts"),
    [
        ([1.0, 9.0, 11.0, 100.0], 2, [2, 2]),
        ([1.0, 4.0, 5.0, 21.0, 22.0, 100.0], 3, [2, 2, 2]),
        ([0.0, 0.0009, 0.0011, 1.0], 2, [2, 2]),
        ([0.0, 0.0], 2, [2, 0]),
        ([1.0, 2.0], 1, [2]),
        ([1.0, 2.0], 0, []),
        ([1.0, 2.0], -1, []),
    ],
)
def test_the_bins_of_a_histogram_have_equal_ratios(
    values: list[float], num_bins: int, counts: list[int]
) -> None:
    window = SlidingWindow()
    window.extend([0.0] * len(values), values)
    assert window.histogram(num_bins) == counts


def test_medians_are_those_of_the_seconds_before_a_time() -> None:
    window = SlidingWindow()
    window.extend([99.5, 102.0, 102.25, 104.75, 105.5], [7.0, 1.0, 3.0, 5.0, 9.0])
    medians = window.medians(104.9)
    known = {ago: value for ago, value in enumerate(reversed(medians)) if not math.isnan(value)}
    assert known == {0: 5.0, 2: 2.0, 5: 7.0}, "that of 105.5 is later"
