"""What a timeline looks at: everything, the last while, or a stretch of one's choice."""

import enum
from typing import NamedTuple

from seqtop.tui.rendering.time_axis import (
    DOUBLE,
    TimeWindow,
    climbed,
    from_left,
    rung_for,
    scale,
    to_right,
)

RECENT = 120.0
"""Seconds that an engine that runs on is first shown of."""
_MARGIN = 2
"""Cells kept free on the right: for the sign of an end, and for where the alignment falls."""


class Extent(NamedTuple):
    """What there is to look at, epoch seconds."""

    first: float
    """The earliest arrival."""
    last: float
    """The newest moment known, or the end of the recording."""
    now: float
    """The moment on show."""
    ends: bool
    """Whether nothing will follow: a recording."""


class Mode(enum.Enum):
    RECENT = "recent"
    """All of it while that is short; then the last while."""
    ALL = "all"
    NOW = "now"
    """The moment on show at the right edge."""
    FREE = "free"


class Viewport:
    """Gives the window for an extent; zooming and panning change what it gives."""

    def __init__(self) -> None:
        self.mode = Mode.RECENT
        self._rung = 0
        self._start = 0.0

    def window(self, extent: Extent, width: int) -> TimeWindow:
        """The stretch to show in `width` cells."""
        room = max(width - _MARGIN, 1)
        length = extent.last - extent.first
        match self.mode:
            case Mode.FREE:
                return from_left(self._start, self._rung, width)
            case Mode.NOW:
                return to_right(extent.now + _MARGIN * scale(self._rung), self._rung, width)
            case Mode.RECENT if length > RECENT and not extent.ends:
                rung = rung_for(RECENT, room)
                return to_right(extent.last + _MARGIN * scale(rung), rung, width)
        return from_left(extent.first, rung_for(length, room), width)

    def zoom(self, extent: Extent, width: int, by: int) -> None:
        """Halve what is in sight `by` times, or double it if negative.

        The moment on show stays where it is if it is in sight, else the middle does.
        """
        old = self.window(extent, width)
        rung = climbed(rung_for(old.cell, 1), -by * DOUBLE)
        if self.mode in (Mode.FREE, Mode.ALL) or extent.ends:
            column = old.column(extent.now)
            column = width // 2 if column is None else column
            anchor = old.start + column * old.cell
            self._start = anchor - column * scale(rung)
            self.mode = Mode.FREE
        else:
            self.mode = Mode.NOW
        self._rung = rung

    def pan(self, extent: Extent, width: int, share: float) -> None:
        """Move by a share of what is in sight, to earlier times if negative."""
        old = self.window(extent, width)
        self._rung = rung_for(old.cell, 1)
        self._start = old.start + round(share * width) * old.cell
        self.mode = Mode.FREE

    def follow(self, extent: Extent, width: int) -> None:
        """Keep to the moment on show from now on, at the scale of before."""
        self._rung = rung_for(self.window(extent, width).cell, 1)
        self.mode = Mode.NOW

    def reveal(self, extent: Extent, width: int) -> None:
        """Bring the moment on show into sight, if it is not."""
        old = self.window(extent, width)
        if old.column(extent.now) is None:
            self._rung = rung_for(old.cell, 1)
            self._start = extent.now - width // 2 * old.cell
            self.mode = Mode.FREE
