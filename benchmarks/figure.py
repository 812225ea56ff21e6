"""The results of a benchmark: figures with limits and peers, and their growth with size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

import msgspec


class Limit(msgspec.Struct, frozen=True):
    """An upper or lower limit of a figure."""

    number: float
    at_least: bool = False

    def holds(self, value: float) -> bool:
        return value >= self.number if self.at_least else value <= self.number

    def text(self, unit: str) -> str:
        return f"{'≥' if self.at_least else '≤'} {amount(self.number, unit)}"


class Figure(msgspec.Struct):
    """One measured figure.

    Attributes:
        what: The measured operation and its size.
        measured: The statistic, and the number of rounds or frames.
        value: The figure in `unit`.
        limit: The limit of the figure, if it has one.
        peer: The alternative it is compared with; empty if there is none.
        peer_value: The figure of the alternative in the same run, in `unit`.
        ratio: The factor by which it is better than the peer, or its share of it, as `peer` says.
        ratio_limit: The limit of the ratio, if it has one.
        note: Information needed to interpret the figure.
    """

    what: str
    measured: str
    value: float
    unit: str
    limit: Limit | None = None
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    ratio_unit: str = "x"
    ratio_limit: Limit | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """True if all limits hold; `None` if there is none."""
        kept = [
            limit.holds(value)
            for limit, value in ((self.limit, self.value), (self.ratio_limit, self.ratio))
            if limit is not None and value is not None
        ]
        return all(kept) if kept else None

    @property
    def target(self) -> str:
        parts = [self.limit.text(self.unit)] if self.limit else []
        parts += [self.ratio_limit.text(self.ratio_unit)] if self.ratio_limit else []
        return ", ".join(parts)


class Growth(msgspec.Struct):
    """The growth of a figure with size: `points` are pairs of size and figure.

    Its slope is the exponent of the best-fitting power law: 0 is flat, 1 is linear.
    """

    what: str
    of: str
    """The objects that the sizes count."""
    unit: str
    points: list[tuple[float, float]]
    limit: float
    """The upper limit of the slope."""

    @property
    def slope(self) -> float:
        logs = [(math.log(size), math.log(max(value, 1e-12))) for size, value in self.points]
        mean_x = sum(x for x, _ in logs) / len(logs)
        mean_y = sum(y for _, y in logs) / len(logs)
        square = sum((x - mean_x) ** 2 for x, _ in logs)
        return sum((x - mean_x) * (y - mean_y) for x, y in logs) / square if square else 0.0

    @property
    def met(self) -> bool:
        return self.slope <= self.limit


class Findings(msgspec.Struct):
    """The results of one module."""

    figures: list[Figure]
    growth: list[Growth] = []


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the value that `percent` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def middle(values: Sequence[float]) -> float:
    return median(values)


def amount(value: float, unit: str) -> str:
    """Formats a figure. Times are given in the unit in which they are shown."""
    if unit == "%":
        return f"{_digits(value * 100)} %"
    if unit == "x":
        return f"{_digits(value)}×"
    return f"{_digits(value)} {unit}".rstrip()


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
