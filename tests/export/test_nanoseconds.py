"""Times and durations in nanoseconds."""

import math
from collections.abc import Callable

import pytest

from seqtop.export import nanoseconds


@pytest.mark.parametrize(
    "convert", [nanoseconds.of_time, nanoseconds.of_duration, nanoseconds.of_difference]
)
def test_seconds_in_nanoseconds(convert: Callable[[float | None], int | None]) -> None:
    for seconds in (None, math.nan, math.inf, -math.inf, 9e9):
        assert convert(seconds) is None, seconds
    for known, expected in ((0.0, 0), (1.5, 1_500_000_000), (2e-9, 2)):
        assert convert(known) == expected, known


def test_nanoseconds_of_negative_and_of_present_times() -> None:
    assert nanoseconds.of_time(-1e-9) is nanoseconds.of_duration(-1e-9) is None
    assert nanoseconds.of_difference(-1.5) == -1_500_000_000
    assert nanoseconds.of_time(1_700_000_000.25) == 1_700_000_000_250_000_000
