"""The checks of the history, the finding under the cursor, and sentences about findings."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from seqtop.checks.thresholds import Thresholds
from seqtop.history.timeline import Timeline
from seqtop.state import EngineState
from seqtop.text import format as fmt

if TYPE_CHECKING:
    from seqtop.checks.background import BackgroundChecker, LocatedFinding


class Checks:
    """The checker of one history, once somebody wants to know.

    Args:
        timeline: The history to check.
        thresholds: The thresholds of the rules.
    """

    def __init__(self, timeline: Timeline, thresholds: Thresholds) -> None:
        self.checker: BackgroundChecker | None = None
        """Checks the history; `None` until `start`."""
        self.selected: int | None = None
        """Number of the finding under the cursor of the checks screen."""
        self._timeline = timeline
        self._thresholds = thresholds

    def start(self) -> BackgroundChecker:
        """Creates a checker for the history."""
        from seqtop.checks.background import BackgroundChecker

        self.checker = BackgroundChecker(self._timeline, thresholds=self._thresholds)
        return self.checker

    def about(
        self, state: EngineState, position: int, request_id: str, seq_id: int
    ) -> list[LocatedFinding]:
        """Returns the findings, up to the moment on display, that name a sequence.

        Args:
            state: The state on display.
            position: Its position in the history.
            request_id: The request of the sequence.
            seq_id: The sequence.
        """
        if self.checker is None or not self.checker.num_findings:
            return []
        incarnation = state.info.incarnation if state.info else ""
        return self.checker.about(incarnation, request_id, seq_id, position)


if TYPE_CHECKING:
    from seqtop.checks.background import LocatedFinding


def sentence(findings: Sequence[LocatedFinding]) -> str:
    """Returns a sentence about the findings at one moment."""
    first = findings[0].finding
    more = (
        f" (and {fmt.plural(len(findings) - 1, 'more finding')} here)" if len(findings) > 1 else ""
    )
    request = f" of {first.request_id}" if first.request_id is not None else ""
    return f"Check {first.rule} failed{request}: {first.message}{more}."


def sequence_sentence(findings: Sequence[LocatedFinding]) -> str:
    """Returns a sentence on the newest of the findings about a sequence; empty without any."""
    if not findings:
        return ""
    newest = max(findings, key=attrgetter("position")).finding
    more = f" ({fmt.plural(len(findings) - 1, 'other finding')})" if len(findings) > 1 else ""
    name = newest.severity.capitalize()
    return f"{name} {newest.rule} at step {newest.step:,}: {newest.message}{more}."
