"""Time axes: the window of time that a timeline shows, and its ticks. All times are seconds."""

import math
from typing import NamedTuple

from seqtop.text import format as fmt

SCALES = tuple(round(10 ** (index / 40), 2) for index in range(40))
"""The scales per power of ten. They are so fine that a window that shows everything leaves 6 % of
its cells blank at most."""
LEVELS_PER_DOUBLE = 12
"""The zoom levels that make a factor of two."""
_MAX_TIME = 1e15
"""A time from which on cells cannot be counted, as of a damaged recording."""
_MIN_LEVEL, _MAX_LEVEL = -160, 240
"""The zoom levels of 100 microseconds and of 1,000,000 seconds per cell."""

_TICKS = (
    *(mantissa * 10.0**power for power in range(-3, 1) for mantissa in (1, 2, 5)),
    15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 43200.0, 86400.0,
)  # fmt: skip


class TimeWindow(NamedTuple):
    """A window of time: `width` cells of `cell` seconds each, from `start` (epoch seconds) on."""

    start: float
    cell: float
    width: int

    @property
    def end(self) -> float:
        return self.start + self.cell * self.width

    def column(self, time: float) -> int | None:
        """Returns the cell that holds `time`; `None` if it is outside of the window."""
        place = (time - self.start) / self.cell
        if not math.isfinite(place) or not 0 <= place < self.width:
            return None
        return int(place)


class Tick(NamedTuple):
    """A tick of a time axis and its label."""

    column: int
    label: str


def countable(time: float, otherwise: float = 0.0) -> float:
    """Returns `time` if cells can be counted up to it, which is no infinity and no NaN."""
    return time if abs(time) < _MAX_TIME else otherwise


def scale(zoom_level: int) -> float:
    """Returns the seconds per cell of a zoom level."""
    power, index = divmod(max(min(zoom_level, _MAX_LEVEL), _MIN_LEVEL), len(SCALES))
    return float(SCALES[index] * 10.0**power)


def zoomed(zoom_level: int, by: int) -> int:
    """Returns the zoom level that is `by` levels coarser, within the limits."""
    return max(min(zoom_level + by, _MAX_LEVEL), _MIN_LEVEL)


def zoom_level_for(length: float, width: int) -> int:
    """Returns the finest zoom level at which `length` seconds fit into `width` cells."""
    if not math.isfinite(length) or length <= 0:
        return _MIN_LEVEL
    cell = length / max(width, 1)
    guess = math.floor(math.log10(cell) * len(SCALES)) - 1
    zoom_level = zoomed(guess, 0)
    while zoom_level < _MAX_LEVEL and scale(zoom_level) < cell:
        zoom_level += 1
    return zoom_level


def window_from(start: float, zoom_level: int, width: int) -> TimeWindow:
    """Returns a window that begins in the cell of `start` (epoch seconds)."""
    cell = scale(zoom_level)
    return TimeWindow(math.floor(countable(start) / cell) * cell, cell, width)


def window_until(end: float, zoom_level: int, width: int) -> TimeWindow:
    """Returns a window whose last cell holds `end` (epoch seconds)."""
    cell = scale(zoom_level)
    return TimeWindow((math.floor(countable(end) / cell) + 1 - width) * cell, cell, width)


def ticks(window: TimeWindow) -> list[Tick]:
    """Returns round times of day in the window, as far apart as their labels need."""
    for step in _TICKS:
        decimals = 0 if step >= 1 else 1 if step >= 0.1 else 2 if step >= 0.01 else 3
        label_width = 8 + (decimals + 1 if decimals else 0)
        if step / window.cell >= label_width + 3:
            break
    else:
        return []
    first = math.ceil(window.start / step)
    marks = []
    for index in range(first, first + int(window.width * window.cell / step) + 1):
        column = window.column(index * step + window.cell / 1e3)
        if column is not None:
            marks.append(Tick(column, fmt.clock(index * step, decimals)))
    return marks


def labels(marks: list[Tick], width: int) -> str:
    """Returns the line of labels, each beginning at its tick, without those that would be cut."""
    text = ""
    for mark in marks:
        if mark.column >= len(text) and mark.column + len(mark.label) <= width:
            text = text.ljust(mark.column) + mark.label
    return text.ljust(width)
