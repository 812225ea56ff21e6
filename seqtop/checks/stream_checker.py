"""Checks of a stream that may have gaps, and the findings so far."""

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias

from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.checks.message_rules import UNREADABLE
from seqtop.checks.thresholds import DEFAULT_THRESHOLDS, Thresholds
from seqtop.state import EngineState
from seqtop.wire.messages import Event

MAX_FINDINGS = 500
"""Findings of one rule that are stored; more are only counted."""

Stored: TypeAlias = Literal["first", "newest"]
_POSITION = attrgetter("position")


class LocatedFinding(NamedTuple):
    """A finding and its position in the stream."""

    number: int
    """The number of the finding, from 1."""
    position: int
    """The position of the event that shows it; never decreases from one finding to the next."""
    finding: Finding


class StreamChecker:
    """Checks a stream of events, and starts again after each gap.

    One thread checks; any thread may read the findings.

    Args:
        stored: The findings to store of a rule that has more than `MAX_FINDINGS`.
        thresholds: The thresholds of the rules.
    """

    def __init__(
        self, *, stored: Stored = "newest", thresholds: Thresholds = DEFAULT_THRESHOLDS
    ) -> None:
        self.num_events = 0
        """Events checked so far."""
        self.num_steps = 0
        """Steps checked so far."""
        self.num_gaps = 0
        """Gaps in the stream; checking started again after each."""
        self.num_findings = 0
        """Findings so far, including those that are not stored."""
        self._stored = stored
        self._thresholds = thresholds
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._found: list[LocatedFinding] = []
        self._checker: Checker | None = None
        self._is_in_gap = False
        self._position = 0
        """The position of the last event that was checked."""

    @property
    def has_started(self) -> bool:
        """True if there is a state to apply events to; false at first and in a gap."""
        return self._checker is not None

    @property
    def ends_in_gap(self) -> bool:
        """True if no state has arrived since the last gap."""
        return self._is_in_gap

    @property
    def step(self) -> int:
        """The last step checked since the last gap; -1 before the first."""
        return -1 if self._checker is None else self._checker.state.step

    def start(self, position: int, state: EngineState) -> None:
        """Starts from a state; after events without `stop`, this counts as a gap.

        Args:
            position: The position of the state in the stream.
            state: The state, which the checker will change.
        """
        self.num_gaps += self.has_started
        self._checker = Checker(state, thresholds=self._thresholds)
        self._is_in_gap, self._position = False, position

    def stop(self) -> None:
        """Stops at a gap, until the next `start`."""
        self.num_gaps += not self._is_in_gap
        self._checker, self._is_in_gap = None, True

    def apply(self, position: int, event: Event) -> None:
        """Checks the next event, which must not change afterwards.

        Args:
            position: The position of the event in the stream.
            event: The event.
        """
        assert self._checker is not None, "`start` comes first"
        state = self._checker.state
        num_steps = state.num_steps_seen
        for finding in self._checker.apply(event):
            # The pool's figures of a step are checked when the next one arrives.
            self._store(position if finding.step == state.step else position - 1, finding)
        self.num_events += 1
        self.num_steps += state.num_steps_seen - num_steps
        self._position = position

    def report_unreadable(self, reason: str) -> None:
        """Adds the finding that the message after the last event cannot be read."""
        self._store(self._position, Finding(UNREADABLE, reason, self.step))

    def end(self) -> None:
        """Checks the state after the last event."""
        for finding in self._checker.end() if self._checker else ():
            self._store(self._position, finding)

    def found(self) -> list[LocatedFinding]:
        """Returns the stored findings, oldest first."""
        with self._lock:
            return list(self._found)

    def counts(self) -> dict[str, int]:
        """Returns the number of findings of each rule that has any, the largest first."""
        with self._lock:
            return dict(self._counts.most_common())

    def next(self, position: int) -> list[LocatedFinding]:
        """Returns the findings at the first position with any after `position`."""
        with self._lock:
            return self._at(bisect_right(self._found, position, key=_POSITION))

    def previous(self, position: int) -> list[LocatedFinding]:
        """Returns the findings at the last position with any before `position`."""
        with self._lock:
            return self._at(bisect_left(self._found, position, key=_POSITION) - 1)

    def _at(self, index: int) -> list[LocatedFinding]:
        """Returns all findings at the position of the one at `index`, if there is one."""
        if not 0 <= index < len(self._found):
            return []
        position = self._found[index].position
        start = bisect_left(self._found, position, key=_POSITION)
        return self._found[start : bisect_right(self._found, position, key=_POSITION)]

    def _store(self, position: int, finding: Finding) -> None:
        with self._lock:
            self.num_findings += 1
            self._counts[finding.rule] += 1
            is_full = self._counts[finding.rule] > MAX_FINDINGS
            if is_full and self._stored == "first":
                return
            if self._found:
                position = max(position, self._found[-1].position)
            self._found.append(LocatedFinding(self.num_findings, position, finding))
            if is_full:
                same = (each.finding.rule == finding.rule for each in self._found)
                del self._found[next(index for index, is_same in enumerate(same) if is_same)]
