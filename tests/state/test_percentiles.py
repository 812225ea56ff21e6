"""Percentiles, by the method of NumPy."""

import random

import numpy as np
import pytest

from seqtop.state.percentiles import median, percentile


def test_the_method_is_that_of_numpy() -> None:
    choose = random.Random(1)
    for count in range(1, 40):
        ordered = sorted(choose.random() for _ in range(count))
        for percent in (0, 1, 50, 90, 99, 100):
            wanted = float(np.percentile(ordered, percent))
            assert percentile(ordered, percent) == pytest.approx(wanted)
    assert percentile(range(1, 11), 90) == pytest.approx(9.1)


def test_medians() -> None:
    assert median([3.0, 1.0, 2.0, 10.0]) == 2.5
    assert median([]) is None
    assert percentile([], 90) is None
