"""Checks of a timeline, in the background."""

from __future__ import annotations

import math

from seqtop.checks.stream_checker import LocatedFinding, Stored, StreamChecker
from seqtop.checks.thresholds import DEFAULT_THRESHOLDS, Thresholds
from seqtop.history.timeline import Timeline
from seqtop.history.timeline_reader import TimelineReader

__all__ = ["BackgroundChecker", "LocatedFinding"]


class BackgroundChecker(StreamChecker, TimelineReader):
    """Checks `timeline` from its beginning to its end, and further as it grows.

    One thread calls `advance`; any thread may read the findings. `num_gaps` includes the parts that
    could not be read.

    Args:
        timeline: The timeline to check.
        stored: The findings of a rule to store where there are too many, as in `StreamChecker`.
        thresholds: The thresholds of the rules.
        max_position: The last position to check; by default all that there are.
    """

    def __init__(
        self,
        timeline: Timeline,
        *,
        stored: Stored = "newest",
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        max_position: float = math.inf,
    ) -> None:
        TimelineReader.__init__(self, timeline, max_position=max_position)
        StreamChecker.__init__(self, stored=stored, thresholds=thresholds)
