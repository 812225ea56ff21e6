"""A sliding window of samples, and exact percentiles of them."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from seqtop.state.percentiles import percentile

WINDOW = 60.0
"""Length of a window, in seconds of the engine's time."""
MAX_IN_WINDOW = 20_000
"""The largest number of samples in a window; the oldest are dropped."""


class Figures(NamedTuple):
    """The percentiles of the samples in a window, in seconds."""

    num: int = 0
    p50: float = math.nan
    p90: float = math.nan
    p99: float = math.nan
    largest: float = math.nan


class Samples:
    """The newest `max_samples` samples: times in epoch seconds, and values in seconds.

    Times and values are in two queues, because pairs would be a hundred thousand objects a second
    for the garbage collector.
    """

    def __init__(self, max_samples: int) -> None:
        self.times: deque[float] = deque(maxlen=max_samples)
        self.values: deque[float] = deque(maxlen=max_samples)

    def __len__(self) -> int:
        return len(self.times)

    def extend(self, times: Iterable[float], values: Iterable[float]) -> None:
        """Adds samples in order of time."""
        self.times.extend(times)
        self.values.extend(values)


class SlidingWindow(Samples):
    """The samples of one figure that are at most `WINDOW` seconds old.

    Samples are sorted when a percentile is read and not when they are added: up to a hundred
    thousand are added per second, and percentiles are read once.
    """

    def __init__(self) -> None:
        super().__init__(MAX_IN_WINDOW)
        self._ordered: list[float] | None = []

    def add(self, time: float, value: float) -> None:
        """Adds one sample."""
        self.extend((time,), (value,))

    def extend(self, times: Iterable[float], values: Iterable[float]) -> None:
        """Adds samples in order of time."""
        super().extend(times, values)
        self._ordered = None

    def expire(self, now: float) -> None:
        """Removes the samples that are too old at `now`."""
        times, values = self.times, self.values
        while times and times[0] <= now - WINDOW:
            times.popleft()
            values.popleft()
            self._ordered = None

    def percentile(self, p: float) -> float:
        """Returns the `p`-th percentile; NaN without samples."""
        found = percentile(self._sorted_values, p)
        return math.nan if found is None else found

    def mean(self) -> float:
        """Returns the mean of the samples; NaN without samples."""
        return math.fsum(self.values) / len(self) if self else math.nan

    def figures(self) -> Figures:
        """Returns the number of samples and their percentiles."""
        if not self:
            return Figures()
        p50, p90, p99 = (self.percentile(p) for p in (50, 90, 99))
        return Figures(len(self), p50, p90, p99, self._sorted_values[-1])

    def histogram(self, num_bins: int) -> list[int]:
        """Returns the number of samples in `num_bins` bins, evenly spaced on a log scale."""
        values = self._sorted_values
        if not values or num_bins < 1:
            return [0] * num_bins
        low, high = max(values[0], 1e-6), max(values[-1], 1e-6)
        edges = [low * (high / low) ** (index / num_bins) for index in range(1, num_bins)]
        below = [bisect_right(values, edge) for edge in edges]
        ends = [*below, len(values)]
        return [end - start for start, end in zip([0, *below], ends, strict=True)]

    def medians(self, now: float) -> list[float]:
        """Returns the median of the samples of each second before `now`, the newest last.

        That of a second without samples is NaN.
        """
        if not math.isfinite(now):
            return []
        last = math.floor(now)
        by_second: list[list[float]] = [[] for _ in range(int(WINDOW))]
        for time, value in zip(self.times, self.values, strict=True):
            if 0 <= (ago := last - math.floor(time)) < len(by_second):
                by_second[-1 - ago].append(value)
        medians = (percentile(sorted(values), 50) for values in by_second)
        return [math.nan if median is None else median for median in medians]

    @property
    def _sorted_values(self) -> list[float]:
        if self._ordered is None:
            self._ordered = sorted(self.values)
        return self._ordered
