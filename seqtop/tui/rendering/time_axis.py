"""Which stretch of time a timeline shows, and the ticks of its axis. Pure; times are seconds."""

import math
from typing import NamedTuple

from seqtop import format as fmt

LADDER = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.4, 8.0)
"""Scales per power of ten. Few of them, so that a window that grows is drawn anew seldom."""
DOUBLE = 3
"""Rungs of the ladder that make a factor of two."""
_FINEST, _COARSEST = -40, 60
"""Rungs: 100 microseconds and 1,000,000 seconds a cell."""

_TICKS = (
    *(mantissa * 10.0**power for power in range(-3, 1) for mantissa in (1, 2, 5)),
    15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0, 86400.0,
)  # fmt: skip


class TimeWindow(NamedTuple):
    """`width` cells from `start` (epoch seconds) on, each `cell` seconds long."""

    start: float
    cell: float
    width: int

    @property
    def end(self) -> float:
        return self.start + self.cell * self.width

    def column(self, time: float) -> int | None:
        """The cell that holds `time`; `None` if it is out of sight."""
        place = (time - self.start) / self.cell
        if not math.isfinite(place) or not 0 <= place < self.width:
            return None
        return int(place)


class Tick(NamedTuple):
    column: int
    label: str


def scale(rung: int) -> float:
    """Seconds per cell on a rung of the ladder."""
    power, index = divmod(max(min(rung, _COARSEST), _FINEST), len(LADDER))
    return float(LADDER[index] * 10.0**power)


def climbed(rung: int, by: int) -> int:
    """Another rung, as far as there are any."""
    return max(min(rung + by, _COARSEST), _FINEST)


def rung_for(length: float, width: int) -> int:
    """The finest rung on which `length` seconds fit into `width` cells."""
    if not math.isfinite(length) or length <= 0:
        return _FINEST
    wanted = length / max(width, 1)
    guess = math.floor(math.log10(wanted) * len(LADDER)) - 1
    rung = climbed(guess, 0)
    while rung < _COARSEST and scale(rung) < wanted:
        rung += 1
    return rung


def from_left(start: float, rung: int, width: int) -> TimeWindow:
    """A window that begins in the cell of `start`."""
    cell = scale(rung)
    start = start if math.isfinite(start) else 0.0
    return TimeWindow(math.floor(start / cell) * cell, cell, width)


def to_right(end: float, rung: int, width: int) -> TimeWindow:
    """A window whose last cell holds `end`."""
    cell = scale(rung)
    end = end if math.isfinite(end) else 0.0
    return TimeWindow((math.floor(end / cell) + 1 - width) * cell, cell, width)


def ticks(window: TimeWindow) -> list[Tick]:
    """Round times of day in the window, as far apart as their labels need."""
    for step in _TICKS:
        decimals = 0 if step >= 1 else 1 if step >= 0.1 else 2 if step >= 0.01 else 3
        label_width = 8 + (decimals + 1 if decimals else 0)
        if step / window.cell >= label_width + 3:
            break
    else:
        return []
    first = math.ceil(window.start / step)
    found = []
    for index in range(first, first + int(window.width * window.cell / step) + 1):
        column = window.column(index * step + window.cell / 1e3)
        if column is not None:
            found.append(Tick(column, fmt.clock(index * step, decimals)))
    return found


def labels(marks: list[Tick], width: int) -> str:
    """The labels, each beginning at its tick; one that would be cut off is left out."""
    text = ""
    for mark in marks:
        if mark.column >= len(text) and mark.column + len(mark.label) <= width:
            text = text.ljust(mark.column) + mark.label
    return text.ljust(width)
