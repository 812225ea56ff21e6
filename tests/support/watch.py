"""Comparisons of a viewer with an engine: by the checker as a listener, and field by field."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.checks.thresholds import Thresholds
from seqtop.live.session import Session
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.state.model import RequestState, SequenceState
from seqtop.state.ordering import SequenceView
from seqtop.transport.connection import ConnectionState
from seqtop.wire import codec, parsing
from seqtop.wire.batch import members
from seqtop.wire.messages import Step
from tests.support.waiting import SECONDS

THRESHOLDS = Thresholds(
    stalled_steps=10, stalled_seconds=1e-6, overtaken_seconds=1e-6, empty_seconds=1e-6
)
"""Of those with a unit of time, none is left to the speed of the machine."""


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
            # Two states must not share parts of a snapshot.
            state = codec.decode(codec.encode(change.state), EngineState)
            self._checker = Checker(state, thresholds=self._thresholds)

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


Row = tuple[RequestState, SequenceState]


class SteppedViewer(ABC):
    """A viewer of an engine that is stepped by hand, compared with the engine after each step.

    A subclass reads both in the same form: `truth` from the engine, `shown` from the viewer.
    """

    def __init__(self, session: Session, watch: Watch) -> None:
        self.session, self.watch = session, watch
        self.num_compared = 0
        self.differences: list[str] = []
        self.reasons: Counter[str] = Counter()
        """The number of times that each reason to wait was shown."""

    @abstractmethod
    def truth(self) -> dict[str, Any]: ...

    @abstractmethod
    def shown(self) -> dict[str, Any] | None: ...

    @abstractmethod
    def compare_reasons(self, given: dict[str, str]) -> None:
        """Compares the causes that the viewer gives, by waiting request."""

    @abstractmethod
    def ends(self) -> Iterable[tuple[str, str, list[int]]]:
        """Yields the name, the status and the output of each request that has ended."""

    def is_late(self) -> bool:
        """Returns whether the viewer does not have the last step yet."""
        return False

    def excuse(self, shown: dict[str, Any], truth: dict[str, Any]) -> None:  # noqa: B027
        """Makes equal in both what is not to be compared."""

    def ended_status(self, sequence: SequenceState) -> str:
        """Returns the status of an ended sequence in the words of `ends`."""
        return sequence.engine_status or sequence.status.name

    def differ(self, difference: str) -> None:
        self.differences.append(f"step {self.num_compared}: {difference}")

    def compare(self) -> None:
        truth, shown = self.truth(), None
        # After a difference, others are likely, and waiting is in vain.
        deadline = time.monotonic() + (0.5 if self.differences else SECONDS / 4)
        while True:
            if not self.is_late():
                with self.session.lock:
                    shown = self.shown()
                if shown is not None:
                    self.excuse(shown, truth)
                    if shown == truth:
                        break
            if time.monotonic() > deadline:
                self.differ(difference(shown, truth))
                break
            time.sleep(0.001)
        self.num_compared += 1
        with self.session.lock:
            requests = self.session.state.requests
            given = {
                name: requests[name].wait_reason.cause
                for name in self.session.state.wait_reason_ids
                if name in requests and requests[name].wait_reason
            }
        self.reasons.update(given.values())
        self.compare_reasons(given)

    def rows(self, state: EngineState) -> dict[str, Row]:
        """Returns each unfinished request with its first sequence, by name."""
        return {
            name: (request, state.sequences[request.seq_ids[0]])
            for name, request in state.requests.items()
            if not request.finish_reason
        }

    def shown_queues(self, rows: dict[str, Row], hidden: Collection[str] = ()) -> dict[str, Any]:
        """Returns who runs, who waits, and who was in the last step.

        Args:
            rows: What `rows` returned.
            hidden: Statuses of the engine's that are not in its queue of waiting requests.
        """
        state = self.session.state
        view = SequenceView()
        view.rebuild(state)
        batch = members(self.watch.step) if self.watch.step is not None else ()
        assert state.stats is not None
        return {
            "running": {
                name
                for name, (_, sequence) in rows.items()
                if sequence.status is SequenceStatus.RUNNING
            },
            "waiting": [
                state.sequences[seq_id].request_id
                for seq_id in view.queue.ids
                if state.sequences[seq_id].engine_status not in hidden
            ],
            "batch": {member.request_id: member.chunk for member in batch},
            "tokens": state.stats.num_prefill_tokens + state.stats.num_decode_tokens,
        }

    def end(self) -> None:
        """Waits for the last messages, and compares the ends of all requests."""
        assert self.session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
        self.watch.end()
        state = self.session.state
        for name, status, output in self.ends():
            (seq_id,) = state.requests[name].seq_ids
            sequence = state.sequences[seq_id]
            shown = self.ended_status(sequence), list(sequence.output_token_ids)
            if shown != (status, output):
                self.differences.append(f"{name} ended: {shown}, {status, output} is true")
        assert not self.differences, self.differences[:3]
        assert state.num_anomalies == 0, state.last_anomaly

    def assert_found(self, rules: Collection[str]) -> None:
        """Asserts that `seqtop check` has found something by these rules alone."""
        assert {finding.rule for finding in self.watch.findings} == set(rules), self.watch.findings


@contextmanager
def watched(endpoint: str, thresholds: Thresholds = THRESHOLDS) -> Iterator[tuple[Session, Watch]]:
    """A viewer of an engine, and the checker that listens to it."""
    watch, session = Watch(thresholds), Session(endpoint)
    session.add_listener(watch.note)
    with session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        yield session, watch
