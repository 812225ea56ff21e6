"""The findings of the checker on what a viewer receives, as a listener of its session."""

from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.checks.thresholds import Thresholds
from seqtop.state.listener import StateChange
from seqtop.wire import parsing
from seqtop.wire.messages import Step


class Watch:
    """What `seqtop check` finds, as a listener.

    Args:
        thresholds: The limits of rules.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self.findings: list[Finding] = []
        self.step: Step | None = None
        """The last step."""
        self._thresholds = thresholds
        self._checker = Checker(thresholds=thresholds)

    def note(self, change: StateChange) -> None:
        if change.event is not None:
            event = parsing.event(change.payload)
            self.findings += self._checker.apply(event)
            if isinstance(event, Step):
                self.step = event
        elif change.state.info is not None:
            self._checker = Checker(thresholds=self._thresholds)
            self._checker.apply(change.state.info)

    def end(self) -> None:
        self.findings += self._checker.end()
