"""Times and durations as whole nanoseconds, for formats that have 64-bit integers."""

from __future__ import annotations

import math

_MAX_SECONDS = 9e9
"""Beyond it, nanoseconds take more than 64 bits: in the year 2255."""


def of_time(time: float | None) -> int | None:
    """Converts epoch seconds, exactly; `None` for what is no time, or is before 1970."""
    if time is None or not 0 <= time < _MAX_SECONDS:
        return None
    # The product with 1e9 would have more digits than a float: this rounds a fraction only.
    fraction, seconds = math.modf(time)
    return int(seconds) * 10**9 + round(fraction * 1e9)


def of_difference(seconds: float | None) -> int | None:
    """Converts a difference in seconds, which may be negative; `None` for what is none."""
    return None if seconds is None or not abs(seconds) < _MAX_SECONDS else round(seconds * 1e9)


def of_duration(seconds: float | None) -> int | None:
    """Converts a duration in seconds; `None` for what is none."""
    return None if seconds is None or not 0 <= seconds < _MAX_SECONDS else round(seconds * 1e9)
