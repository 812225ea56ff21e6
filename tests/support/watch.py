"""Comparisons of a viewer with an engine: by the checker as a listener, and field by field."""

from typing import Any

from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.checks.thresholds import Thresholds
from seqtop.state.listener import StateChange
from seqtop.wire import parsing
from seqtop.wire.messages import Step


class Watch:
    """Findings of `seqtop check`, as a listener.

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


def difference(shown: dict[str, Any] | None, truth: dict[str, Any]) -> str:
    """Returns the first part in which a viewer and an engine differ; empty if none does."""
    if shown is None:
        return "nothing is shown"
    for key, value in truth.items():
        if shown[key] == value:
            continue
        if key != "requests":
            return f"{key}: {shown[key]} is shown, {value} is true"
        for name in {*value, *shown[key]}:
            one, other = shown[key].get(name), value.get(name)
            if one is None or other is None:
                return f"{name}: {one} is shown, {other} is true"
            for field in other:
                if one[field] != other[field]:
                    return f"{name}.{field}: {one[field]} is shown, {other[field]} is true"
    return ""
