"""Percentiles of samples, by one method for the live screens, reports and predictions.

With n samples in order, x₀ to xₙ₋₁, the p-th percentile lies at h = (n - 1) · p / 100 and is
interpolated linearly between the samples around it (Hyndman and Fan 1996, number 7). NumPy does so
by default, and with it vLLM's benchmark and AIPerf: the same samples give the same figures there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """Returns a percentile of samples that are in order; `None` without samples.

    Args:
        ordered: The samples, the smallest first.
        percent: A number from 0 to 100.
    """
    if not ordered:
        return None
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


_NEAR = 1.05
"""The ratio of the bounds of a percentile up to which it counts as known."""


class LeastPercentile(NamedTuple):
    """A percentile of samples of which some are only known to be at least so large."""

    value: float
    is_least: bool
    """True if it may be higher by more than a twentieth."""


def least_percentile(
    known: Sequence[float], least: Sequence[float], percent: float
) -> LeastPercentile | None:
    """Returns a percentile of samples in any order; `None` without samples.

    Args:
        known: The samples that are known.
        least: Lower bounds of those that are not, such as the waits of requests that still wait.
        percent: A number from 0 to 100.
    """
    value = percentile(sorted((*known, *least)), percent)
    most = percentile(sorted(known) + [math.inf] * len(least), percent)
    if value is None or most is None:
        return None
    return LeastPercentile(value, not most <= _NEAR * value)


def is_better(
    a: float | None,
    b: float | None,
    better: int,
    *,
    a_is_least: bool = False,
    b_is_least: bool = False,
) -> bool | None:
    """Returns whether the second of two figures is better; `None` if that is not known.

    Args:
        a: The first figure.
        b: The second one.
        better: 1 if more is better, -1 if less is, 0 if neither is.
        a_is_least: Whether the first one may be higher.
        b_is_least: Whether the second one may be higher.
    """
    if a is None or b is None or a == b or not better:
        return None
    is_more = b > a
    if (a_is_least and is_more) or (b_is_least and not is_more):
        return None
    return is_more == (better > 0)


def median(values: Iterable[float]) -> float | None:
    """Returns the median of samples in any order; `None` without samples."""
    return percentile(sorted(values), 50)
