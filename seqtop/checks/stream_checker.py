"""Checks of a stream that may have gaps, and the findings so far."""

import threading
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias

from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.checks.gate import Gate
from seqtop.checks.rules import RULES
from seqtop.checks.thresholds import DEFAULT_THRESHOLDS, Thresholds
from seqtop.history.replay import Reader
from seqtop.state import EngineState
from seqtop.wire.messages import Event, Step

MAX_FINDINGS = 500
"""Findings of one rule that are stored; more are only counted."""

MAX_INDEXED = 10_000
"""Findings that are indexed by the sequence or the request that they name."""

Stored: TypeAlias = Literal["first", "newest"]
_POSITION = attrgetter("position")


class LocatedFinding(NamedTuple):
    """A finding and its position in the stream."""

    number: int
    """The number of the finding, from 1."""
    position: int
    """The position of the event that shows it; never decreases from one finding to the next."""
    finding: Finding


class StreamChecker(Reader):
    """Checks a stream of events, and starts again after each gap.

    One thread checks; any thread may read the findings.

    Args:
        stored: The findings to store of a rule that has more than `MAX_FINDINGS`.
        thresholds: The thresholds of the rules.
        gates: What the stream has to satisfy besides; they read the same events and states.
    """

    def __init__(
        self,
        *,
        stored: Stored = "newest",
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        gates: Sequence[Gate] = (),
    ) -> None:
        self.gates = gates
        self.num_events = 0
        """Events checked so far."""
        self.num_steps = 0
        """Steps checked so far."""
        self.num_gaps = 0
        """Gaps in the stream; checking started again after each."""
        self.num_findings = 0
        """Findings so far, including those that are not stored."""
        self.num_warnings = 0
        """Findings so far that are warnings; the others are errors."""
        self._stored = stored
        self._thresholds = thresholds
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._found: list[LocatedFinding] = []
        self._about: defaultdict[tuple[str, int | str], list[LocatedFinding]] = defaultdict(list)
        """The first findings about each sequence, by incarnation and sequence id, or request id if
        they name no sequence."""
        self._num_indexed = 0
        self._checker: Checker | None = None
        self._is_in_gap = False
        self._position = 0
        """The position of the last event that was checked."""

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
            state: The state, which the events change.
        """
        self.num_gaps += self._checker is not None
        self._checker = Checker(state, thresholds=self._thresholds)
        self._is_in_gap, self._position = False, position
        for gate in self.gates:
            gate.start(position, state)

    def stop(self) -> None:
        """Stops at a gap, until the next `start`."""
        self.num_gaps += not self._is_in_gap
        self._checker, self._is_in_gap = None, True
        for gate in self.gates:
            gate.stop()

    def check(self, position: int, event: Event) -> None:
        """Checks the next event of a stream, and applies it to the state.

        Args:
            position: The position of the event in the stream.
            event: The event, which must not change afterwards.
        """
        assert self._checker is not None, "`start` comes first"
        self.before(event)
        self.apply(position, event, [*self._checker.state.apply(event)])

    def before(self, event: Event) -> None:
        """Checks the state before the next event."""
        assert self._checker is not None, "`start` comes first"
        self._checker.before(event)
        for gate in self.gates:
            gate.before(event)

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Checks the next event after it was applied to the state."""
        assert self._checker is not None, "`start` comes first"
        state = self._checker.state
        for finding in self._checker.after(event, touched):
            # The pool's figures of a step are checked when the next one arrives.
            self._store(position if finding.step == state.step else position - 1, finding)
        for gate in self.gates:
            gate.apply(position, event, touched)
        self.num_events += 1
        self.num_steps += isinstance(event, Step)
        self._position = position

    def report(self, rule: str, message: str) -> None:
        """Adds a finding about what came after the last event and is not an event."""
        severity = RULES[rule].severity
        self._store(self._position, Finding(rule, message, self.step, severity=severity))

    def end(self) -> None:
        """Checks the state after the last event."""
        for finding in self._checker.end() if self._checker else ():
            self._store(self._position, finding)

    def findings(self) -> list[LocatedFinding]:
        """Returns the stored findings, oldest first."""
        with self._lock:
            return list(self._found)

    def counts(self) -> dict[str, int]:
        """Returns the number of findings of each rule that has any, the largest first."""
        with self._lock:
            return dict(self._counts.most_common())

    @property
    def num_errors(self) -> int:
        """Findings so far that are errors."""
        return self.num_findings - self.num_warnings

    @property
    def is_index_full(self) -> bool:
        """True if `about` may lack findings."""
        return self._num_indexed >= MAX_INDEXED

    def about(
        self, incarnation: str, request_id: str, seq_id: int, position: int
    ) -> list[LocatedFinding]:
        """Returns the findings up to `position` that name a sequence, or only its request."""
        with self._lock:
            lists = [self._about.get((incarnation, key), ()) for key in (seq_id, request_id)]
            return [
                located
                for about in lists
                for located in about[: bisect_right(about, position, key=_POSITION)]
            ]

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
            self.num_warnings += finding.severity == "warning"
            self._counts[finding.rule] += 1
            self._add_to_index(position, finding)
            is_full = self._counts[finding.rule] > MAX_FINDINGS
            if is_full and self._stored == "first":
                return
            if self._found:
                position = max(position, self._found[-1].position)
            self._found.append(LocatedFinding(self.num_findings, position, finding))
            if is_full:
                same = (located.finding.rule == finding.rule for located in self._found)
                del self._found[next(index for index, is_same in enumerate(same) if is_same)]

    def _add_to_index(self, position: int, finding: Finding) -> None:
        name = finding.request_id if finding.seq_id is None else finding.seq_id
        if name is None or self.is_index_full:
            return
        info = self._checker.state.info if self._checker is not None else None
        about = self._about[info.incarnation if info else "", name]
        if about:
            position = max(position, about[-1].position)
        about.append(LocatedFinding(self.num_findings, position, finding))
        self._num_indexed += 1
