"""The clock of exports whose times are whole nanoseconds."""

from __future__ import annotations

import math

from seqtop.export.lifecycle import EngineRun, start_time

_LONGEST_SECONDS = 4e9
"""Times are 64-bit integers, which an untrusted clock may exceed."""


class Clock:
    """Converts the engine's clock, epoch seconds, to nanoseconds since the first arrival or step.

    A time since the epoch in nanoseconds has more digits than a `float`: differences are exact only
    because both are taken from the same start.
    """

    def __init__(self, runs: list[EngineRun]) -> None:
        self.start = min(max(start_time(runs), 0.0), _LONGEST_SECONDS)
        """The first arrival or step, epoch seconds."""
        fraction, seconds = math.modf(self.start)
        self.epoch = int(seconds) * 10**9 + round(fraction * 1e9)
        """The same in nanoseconds since the epoch."""

    def nanoseconds(self, time: float | None, *, unknown: int) -> int:
        """Converts epoch seconds; returns `unknown` for `None` and non-finite numbers."""
        if time is None or not math.isfinite(time):
            return unknown
        return round(min(max(time - self.start, 0.0), _LONGEST_SECONDS) * 1e9)

    def since_epoch(self, time: float | None) -> int | None:
        """Converts epoch seconds to nanoseconds since the epoch; `None` for what is no time."""
        if time is None or not math.isfinite(time):
            return None
        return self.epoch + self.nanoseconds(time, unknown=0)


def duration_nanoseconds(seconds: float | None) -> int | None:
    """Converts a duration in seconds; `None` for what is none."""
    if seconds is None or not 0 <= seconds < math.inf:
        return None
    return round(min(seconds, _LONGEST_SECONDS) * 1e9)
