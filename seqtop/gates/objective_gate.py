"""Objectives that the requests of a run have to meet."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from seqtop.checks.gate import Gate, Outcome
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.model import RequestState, SequenceState
from seqtop.state.percentiles import least_percentile
from seqtop.state.request_times import MEASURES, Progress, RequestTime
from seqtop.state.slo import FIGURES, Objective
from seqtop.state.slo_misses import cause_of
from seqtop.text import format as fmt
from seqtop.wire.messages import Event, RequestFinished

_SERVED: Final = frozenset({"stop", "length"})
"""The finish reasons of requests with a complete output."""
_MAX_CAUSES: Final = 3


class _Request(NamedTuple):
    """A request and its sequences."""

    request: RequestState
    sequences: list[SequenceState]

    @property
    def is_refused(self) -> bool:
        """True if the engine ended it without computing anything, as its prompt is too long."""
        return any(own.status is SequenceStatus.FINISHED_IGNORED for own in self.sequences)

    @property
    def is_served(self) -> bool:
        """True if it ended with a complete output."""
        return self.request.finish_reason in _SERVED

    def time(self, figure: str, end: float) -> RequestTime | None:
        """Returns a figure of the request: that of its slowest sequence."""
        counts = [len(sequence.output_token_ids) for sequence in self.sequences] or [0]
        times = (
            MEASURES[figure](Progress(self.request.metrics, count, self.is_served, end))
            for count in counts
        )
        known = (time for time in times if time is not None and 0 <= time.seconds < math.inf)
        return max(known, default=None)

    def cause(self, figure: str, state: EngineState) -> str:
        """Returns the longest part of a figure, in words."""
        if not self.sequences:
            return "unknown"
        return cause_of(state, self.request, self.sequences[0], figure)


class _Samples:
    """The times of one figure."""

    def __init__(self) -> None:
        self.known, self.least = array("d"), array("d")
        self.worst: tuple[float, str, int] = (-1.0, "", -1)
        """The largest of them, its request, and the last step that the request is known from."""
        self.causes: Counter[str] = Counter()
        """The requests beyond the limit, by cause."""

    def __len__(self) -> int:
        return len(self.known) + len(self.least)

    def add(self, time: RequestTime, request_id: str, step: int) -> None:
        """Adds the time of a request."""
        (self.least if time.is_least else self.known).append(time.seconds)
        self.worst = max(self.worst, (time.seconds, request_id, step))


class ObjectiveGate(Gate):
    """Reads a run, and finds which percentile of its requests is within the limits.

    The requests of the run are those that had not ended when it began, and those that arrived. One
    that has not ended at the end counts with its time so far.

    Args:
        objective: The limits, and the percentile.
    """

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._samples = {figure: _Samples() for figure in objective.slo.limits}
        self._num_requests = self._num_refused = 0
        self._state: EngineState | None = None
        self._time = -math.inf
        self._ending: _Request | None = None
        """The request that the next event ends."""

    def start(self, position: int, state: EngineState) -> None:
        """Begins with a state, or continues after a gap, in which requests may have ended."""
        since = state.time if self._state is None else self._time
        for found in self._lost_in(state):
            assert self._state is not None, "it has them"
            self._add(found, self._state, self._time)
        self._state, self._time = state, state.time
        for request in state.requests.values():
            ended = request.metrics.finished_time
            if request.finish_reason is not None and ended is not None and ended > since:
                self._add(_of(request, state), state, ended)

    def before(self, event: Event) -> None:
        """Notes the request that an event ends: the state may drop it at once."""
        self._ending = None
        if isinstance(event, RequestFinished) and self._state is not None:
            request = self._state.requests.get(event.request_id)
            if request is not None and request.finish_reason is None:
                self._ending = _of(request, self._state)

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Reads the figures of a request that has ended."""
        state = self._state
        assert state is not None, "`start` comes first"
        self._time = max(self._time, state.time)
        if self._ending is not None:
            self._add(self._ending, state, self._time)

    def outcomes(self) -> list[Outcome]:
        """Returns whether each limit was met."""
        if self._state is not None:
            for request in self._state.requests.values():
                if request.finish_reason is None:
                    self._add(_of(request, self._state), self._state, self._time)
            self._state = None
        return [
            self._outcome(figure, limit) for figure, limit in self._objective.slo.limits.items()
        ]

    def _lost_in(self, state: EngineState) -> Iterator[_Request]:
        """Yields the unfinished requests that another state has no more."""
        for request in () if self._state is None else self._state.requests.values():
            if request.finish_reason is None:
                now = state.requests.get(request.request_id)
                arrived = request.metrics.arrival_time
                if now is None or now.metrics.arrival_time != arrived:
                    assert self._state is not None
                    yield _of(request, self._state)

    def _add(self, found: _Request, state: EngineState, end: float) -> None:
        """Counts a request.

        Args:
            found: The request.
            state: The last state that had it.
            end: Until when it is known, epoch seconds.
        """
        request = found.request
        if found.is_refused:
            self._num_refused += 1
            return
        self._num_requests += 1
        for figure, limit in self._objective.slo.limits.items():
            time, samples = found.time(figure, end), self._samples[figure]
            if time is None:
                continue
            samples.add(time, request.request_id, state.step)
            if time.seconds > limit:
                samples.causes[found.cause(figure, state)] += 1

    def _outcome(self, figure: str, limit: float) -> Outcome:
        percent, samples = self._objective.percent, self._samples[figure]
        name = FIGURES[figure]
        title = name if percent == 100 else f"{name} p{percent:.10g}"
        gate = f"{title} ≤ {fmt.seconds(limit)}"
        found = least_percentile(samples.known, samples.least, percent)
        if found is None:
            message = f"none of {fmt.plural(self._num_requests, 'request')} has a known {name}"
            return Outcome(
                rule="objective", gate=gate, result="unknown", message=message, limit=limit
            )
        is_missed = found.value > limit
        least = "≥ " if found.is_least else ""
        place = "the largest" if percent == 100 else f"p{percent:.10g}"
        message = f"{place} is {least}{fmt.seconds(found.value)}"
        _, request_id, step = samples.worst
        return Outcome(
            rule="objective",
            gate=gate,
            result="missed" if is_missed else "met",
            message="; ".join([message, *self._details(samples, name)]),
            value=found.value,
            limit=limit,
            step=step if is_missed else -1,
            request_id=request_id if is_missed else None,
        )

    def _details(self, samples: _Samples, name: str) -> Iterator[str]:
        """Yields phrases on the requests behind a percentile."""
        num, num_beyond = len(samples), samples.causes.total()
        if num_beyond:
            of, share = fmt.plural(num, "request"), fmt.percent(num_beyond, num)
            yield f"beyond the limit: {fmt.count(num_beyond)} of {of} ({share})"
            seconds, request_id, _ = samples.worst
            yield f"the longest is {request_id} with {fmt.seconds(seconds)}"
            causes = samples.causes.most_common(_MAX_CAUSES)
            yield "causes: " + ", ".join(f"{cause} {fmt.count(count)}" for cause, count in causes)
        else:
            yield f"within the limit: all of {fmt.plural(num, 'request')}"
        if samples.least:
            yield f"counted with their time so far: {fmt.plural(len(samples.least), 'request')}"
        if self._num_requests > num:
            yield f"left out: {fmt.plural(self._num_requests - num, 'request')} without a {name}"
        if self._num_refused:
            yield f"left out: {fmt.plural(self._num_refused, 'request')} that the engine refused"


def _of(request: RequestState, state: EngineState) -> _Request:
    sequences = [state.sequences[id_] for id_ in request.seq_ids if id_ in state.sequences]
    return _Request(request, sequences)
