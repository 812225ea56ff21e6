"""Rules on requests that wait for ever: those that wait for each other, and those for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

from seqtop.checks.finding import Finding
from seqtop.checks.outside_waits import OutsideWaits, is_unfinished
from seqtop.checks.rules import RuleGroup, rule
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.holdings import num_blocks
from seqtop.state.model import RequestState
from seqtop.state.wait_graph import (
    DEADLOCKED_STEPS,
    Head,
    Source,
    orphan,
    proof,
    queue_head,
    source_of_progress,
    unblocking,
    wait_graph,
)
from seqtop.text import format as fmt
from seqtop.wire.batch import scheduled_requests
from seqtop.wire.messages import Event, RequestFinished, Step

_SWEEP_STEPS = 4
"""Steps between two looks at the unfinished requests."""
_SWEEP_SECONDS = 0.1
"""Seconds between them, at least."""
_PROVEN_STEPS = 8
"""Steps in which a waiting request has no source of progress before it is reported: an engine that
schedules ahead reports arrivals and ends at other times than reasons."""
_PROVEN_SECONDS = 0.25
_MOVING = ("step", "outside", "paused", "budget")
"""Sources of progress of a request that holds something."""
_MAX_EXAMINED = 512
"""The unfinished requests that one look examines: the oldest."""


class _Suspicion(NamedTuple):
    """The first look at which a request had no source of progress."""

    step: int
    time: float


class WaitGraphRules(RuleGroup):
    """Rules on the wait graph (`seqtop.state.wait_graph`).

    Args:
        state: The state of the engine.
        outside: The waits for something other than a turn, which are progress until their limits.
    """

    def __init__(self, state: EngineState, outside: OutsideWaits) -> None:
        super().__init__(state)
        self._outside = outside
        self._num_empty_steps = 0
        """Steps in a row that computed nothing while requests were unfinished."""
        self._empty_since = 0.0
        """The start of the first of them, epoch seconds."""
        self._is_deadlocked = False
        """True if the present deadlock has been reported."""
        self._gives_reasons = False
        """True if the engine has said why a request waits."""
        self._swept_step, self._swept_time = -1, 0.0
        self._suspicions: dict[str, _Suspicion] = {}
        self._is_reported = False
        """True if the present incident has been reported."""

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks that something lets each unfinished request advance."""
        if isinstance(event, RequestFinished):
            self._suspicions.pop(event.request_id, None)
        if not isinstance(event, Step):
            return
        info = self.state.info
        if info is None or not {"why", "steps"}.isdisjoint(info.not_available):
            return  # it does not say which requests wait, or which run in a step
        self._gives_reasons |= any(reason.cause != "unknown" for reason in event.wait_reasons)
        stats = event.stats
        has_tokens = stats.num_prefill_tokens + stats.num_decode_tokens > 0
        if has_tokens or any(True for _ in scheduled_requests(event)):
            self._num_empty_steps, self._is_deadlocked = 0, False
        elif len(self.state.requests) > len(self.state.finished):
            if not self._num_empty_steps:
                self._empty_since = event.start_time
            self._num_empty_steps += 1
            is_long = event.time - self._empty_since >= _PROVEN_SECONDS
            is_proven = is_long and self._num_empty_steps >= DEADLOCKED_STEPS
            if is_proven and not self._is_deadlocked and not self._outside.lasts():
                yield from self._deadlock()
        if self._suspicions and not self._is_reported:
            self._clear_those_with_a_source()
        is_due = event.step - self._swept_step >= _SWEEP_STEPS or event.step < self._swept_step
        if is_due and event.time - self._swept_time >= _SWEEP_SECONDS:
            self._swept_step, self._swept_time = event.step, event.time
            yield from self._orphans()

    @rule(
        "deadlock",
        "nothing advances, and requests hold blocks that they need from each other",
        "warning",
    )
    def _deadlock(self) -> Iterator[Finding]:
        head = queue_head(self.state)
        request = head.request if head is not None else next(self._unfinished(), None)
        if request is None:
            return
        graph = wait_graph(self.state, request)
        missing = graph.reason.num_missing if graph.reason is not None else 0
        if graph.unit != "block" or (graph.reason and missing <= 0):
            return
        overdue = [own for own in graph.holders if self._outside.is_overdue(own.request_id)]
        if graph.source != "cycle" and not (
            graph.source == "holders"
            and len(overdue) == sum(own.source in _MOVING for own in graph.holders)
        ):
            return
        self._is_deadlocked = True
        held = num_blocks(self.state, request)
        own = f" It holds {fmt.plural(held, 'block')} itself." if held else ""
        late = "".join(f" {own.request_id} {own.detail} beyond its limit." for own in overdue[:4])
        yield self.of_engine(
            f"{proof(graph)}.{own}{late} {unblocking(graph)}".rstrip(". "),
            request_id=request.request_id,
        )

    def _clear_those_with_a_source(self) -> None:
        """Forgets the suspected requests that have a source of progress, if for one step only."""
        head, requests = queue_head(self.state), self.state.requests
        self._suspicions = {
            name: first
            for name, first in self._suspicions.items()
            if (request := requests.get(name)) is not None and self._source(request, head) == "none"
        }

    @rule("orphan", "nothing lets an unfinished request advance", "warning")
    def _orphans(self) -> Iterator[Finding]:
        """Looks for requests without a source of progress, and reports one of each incident."""
        state, before, self._suspicions = self.state, self._suspicions, {}
        head, found = queue_head(state), None
        for request in islice(self._unfinished(), _MAX_EXAMINED):
            name = request.request_id
            if self._source(request, head) == "none":
                self._suspicions[name] = before.get(name) or _Suspicion(state.step, state.time)
                if found is None and self._is_proven(request, self._suspicions[name]):
                    found = request
        if found is None or self._is_reported:
            self._is_reported = found is not None
            return
        self._is_reported = True
        first = self._suspicions[found.request_id]
        num_steps, seconds = state.step - first.step, state.time - first.time
        others = len(self._suspicions) - 1
        more = f" (and so it is for {fmt.plural(others, 'other request')})" if others else ""
        yield self.of_engine(
            f"it has no source of progress, in {fmt.plural(num_steps, 'step')} and"
            f" {seconds:.1f} s: {orphan(wait_graph(state, found))}{more}",
            request_id=found.request_id,
        )

    def _is_proven(self, request: RequestState, first: _Suspicion) -> bool:
        num_steps, seconds = self.state.step - first.step, self.state.time - first.time
        # Of one that runs, each of some steps has already shown it.
        sequences = map(self.state.sequences.get, request.seq_ids)
        runs = any(own is not None and own.status is SequenceStatus.RUNNING for own in sequences)
        least = _SWEEP_STEPS if runs else _PROVEN_STEPS
        return num_steps >= least and seconds >= _PROVEN_SECONDS

    def _source(self, request: RequestState, head: Head | None) -> Source:
        source = source_of_progress(self.state, request, head)
        if source == "unknown" and self._gives_reasons and not self.state.wait_reason_ids:
            return "none"
        stats = self.state.stats
        is_head = head is not None and head.request is request
        if source == "holders" and self._outside.ended():
            return source  # those that have ended hold some
        if source == "holders" and is_head and stats is not None and not stats.num_running:
            return wait_graph(self.state, request).source
        return source

    def _unfinished(self) -> Iterator[RequestState]:
        return filter(partial(is_unfinished, self.state), self.state.requests.values())
