"""The viewport of a timeline: all recorded time, its end, or any range of it."""

import enum
from typing import NamedTuple

from seqtop.tui.rendering.time_axis import (
    LEVELS_PER_DOUBLE,
    TimeWindow,
    scale,
    window_from,
    window_until,
    zoom_level_for,
    zoomed,
)

RECENT = 120.0
"""Seconds of a running engine that are shown at first."""
_MARGIN = 2
"""Free cells at the right: for the sign of an end, and for the alignment to whole cells."""


_LEVELS_PER_GROWTH = 2
"""The zoom levels by which the scale of a growing window changes: all of it is drawn anew then."""


class Extent(NamedTuple):
    """The recorded time, in epoch seconds."""

    first: float
    """The earliest arrival."""
    last: float
    """The newest moment, or the end of the recording."""
    now: float
    """The moment on display."""
    ends: bool
    """True if the history is complete, as that of a recording is."""


class Mode(enum.Enum):
    """The part of the recorded time that the viewport shows."""

    RECENT = "recent"
    """All recorded time while that is short, then the most recent."""
    ALL = "all"
    NOW = "now"
    """The time up to the moment on display."""
    FREE = "free"
    """The range to which the user zoomed or panned."""


class Viewport:
    """Computes the window for an extent. The user zooms and pans."""

    def __init__(self) -> None:
        self.mode = Mode.RECENT
        self._zoom_level = 0
        self._start = 0.0
        self._before: tuple[Mode, int, float] | None = None
        """Mode, zoom level and start before the viewport moved by itself."""

    def window(self, extent: Extent, width: int) -> TimeWindow:
        """Returns the window to show in `width` cells."""
        room = max(width - _MARGIN, 1)
        length = extent.last - extent.first
        match self.mode:
            case Mode.FREE:
                return window_from(self._start, self._zoom_level, width)
            case Mode.NOW:
                return window_until(
                    extent.now + _MARGIN * scale(self._zoom_level), self._zoom_level, width
                )
            case Mode.RECENT if length > RECENT and not extent.ends:
                zoom_level = zoom_level_for(RECENT, room)
                return window_until(extent.last + _MARGIN * scale(zoom_level), zoom_level, width)
        zoom_level = zoom_level_for(length, room)
        if not extent.ends:
            zoom_level += -zoom_level % _LEVELS_PER_GROWTH
        return window_from(extent.first, zoom_level, width)

    def zoom(self, extent: Extent, width: int, by: int) -> None:
        """Halves the visible time `by` times, or doubles it if negative.

        The moment on display keeps its column if it is visible, otherwise the middle does.
        """
        old = self.window(extent, width)
        self._before = None
        zoom_level = zoomed(zoom_level_for(old.cell, 1), -by * LEVELS_PER_DOUBLE)
        if self.mode in (Mode.FREE, Mode.ALL) or extent.ends:
            column = old.column(extent.now)
            column = width // 2 if column is None else column
            anchor = old.start + column * old.cell
            self._start = anchor - column * scale(zoom_level)
            self.mode = Mode.FREE
        else:
            self.mode = Mode.NOW
        self._zoom_level = zoom_level

    def pan(self, extent: Extent, width: int, share: float) -> None:
        """Moves by a share of the visible time, to earlier times if negative."""
        old = self.window(extent, width)
        self._zoom_level = zoom_level_for(old.cell, 1)
        self._start = old.start + round(share * width) * old.cell
        self._before = None
        self.mode = Mode.FREE

    def fit(self) -> None:
        """Shows everything from now on."""
        self._before = None
        self.mode = Mode.ALL

    def follow(self, extent: Extent, width: int) -> None:
        """Follows the moment on display from now on, at the current scale."""
        self._zoom_level = zoom_level_for(self.window(extent, width).cell, 1)
        self._before = None
        self.mode = Mode.NOW

    def reveal(self, extent: Extent, width: int) -> None:
        """Moves to the moment on display, if that is not visible."""
        self.reveal_span(extent, width, extent.now, extent.now)

    def reveal_span(self, extent: Extent, width: int, first: float, last: float) -> None:
        """Moves to the times from `first` to `last`, if none of them is visible."""
        old = self.window(extent, width)
        if first < old.end and last >= old.start:
            return
        if self._before is None:
            self._before = self.mode, self._zoom_level, self._start
        self._zoom_level = zoom_level_for(old.cell, 1)
        self._start = (first + last) / 2 - width // 2 * old.cell
        self.mode = Mode.FREE

    def release(self) -> None:
        """Goes back to where the user left the viewport before it moved by itself."""
        if self._before is not None:
            self.mode, self._zoom_level, self._start = self._before
            self._before = None
