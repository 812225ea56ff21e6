"""Checks of a timeline, in the background."""

from __future__ import annotations

from collections.abc import Sequence

from seqtop.checks.gate import Gate
from seqtop.checks.stream_checker import LocatedFinding, Stored, StreamChecker
from seqtop.checks.thresholds import DEFAULT_THRESHOLDS, Thresholds
from seqtop.history.replay import Replay
from seqtop.history.timeline import Timeline
from seqtop.state.model import DEFAULT_MAX_FINISHED

__all__ = ["BackgroundChecker", "LocatedFinding"]


class BackgroundChecker(StreamChecker):
    """Checks `timeline` from its beginning to its end, and further as it grows.

    One thread advances `replay`; any thread may read the findings. `num_gaps` includes the parts
    that could not be read.

    Args:
        timeline: The timeline to check.
        stored: The findings of a rule to store where there are too many, as in `StreamChecker`.
        thresholds: The thresholds of the rules.
        gates: What it has to satisfy besides, as in `StreamChecker`.
    """

    def __init__(
        self,
        timeline: Timeline,
        *,
        stored: Stored = "newest",
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        gates: Sequence[Gate] = (),
    ) -> None:
        super().__init__(stored=stored, thresholds=thresholds, gates=gates)
        self.replay = Replay(timeline, [self], max_finished=DEFAULT_MAX_FINISHED)
        """Reads the timeline."""
