"""Rules on times: their order, and the durations computed from them."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from seqtop.checks.finding import Finding
from seqtop.checks.rules import RuleGroup, rule
from seqtop.sequence import RequestMetrics
from seqtop.state import EngineState
from seqtop.state.model import RequestState
from seqtop.wire.messages import Event, RequestFinished, Step

_TIME_TOLERANCE = 1e-6
"""Seconds by which a difference of two times may be off because of rounding."""
_TIME_ORDER = rule("time-order", "times of a step or of a request are out of order")


class TimeRules(RuleGroup):
    """Rules on steps, and on requests that ran or finished."""

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._last_step_time = -math.inf
        self._reported: set[tuple[str, str]] = set()
        """Unfinished requests with a finding, which recurs in each step, and its rule."""

    def after(self, event: Event, touched: Sequence[int]) -> Iterator[Finding]:
        """Checks the times of a step, or of a request that finished."""
        if isinstance(event, Step):
            yield from self._step_order(event)
        if isinstance(event, RequestFinished):
            request = self.state.requests.get(event.request_id)
            yield from self.ran(request) if request else ()
            self._reported -= {(name, event.request_id) for name in ("order", "queue")}

    def ran(self, request: RequestState) -> Iterator[Finding]:
        """Checks the times of a request."""
        if _are_right(request.metrics):
            return
        for name, check in (("order", self._request_order), ("queue", self._queue_time)):
            key = name, request.request_id
            if key not in self._reported:
                for finding in check(request.metrics, request.request_id):
                    self._reported.add(key)
                    yield finding

    @_TIME_ORDER
    def _step_order(self, step: Step) -> Iterator[Finding]:
        last, self._last_step_time = self._last_step_time, step.time
        if step.time < last:
            yield self.of_engine(f"the step ends {last - step.time:g} s before the one before it")
        if step.time < step.start_time:
            yield self.of_engine(
                f"the step ends {step.start_time - step.time:g} s before it starts"
            )

    @_TIME_ORDER
    def _request_order(self, metrics: RequestMetrics, request_id: str) -> Iterator[Finding]:
        in_order = (
            ("arrival_time", metrics.arrival_time),
            ("first_scheduled_time", metrics.first_scheduled_time),
            ("first_token_time", metrics.first_token_time),
            ("last_token_time", metrics.last_token_time if metrics.first_token_time else None),
            ("finished_time", metrics.finished_time),
        )
        known = [(name, time) for name, time in in_order if time is not None]
        for (earlier, first), (later, second) in pairwise(known):
            if second < first:
                yield self.of_engine(
                    f"{later} is {first - second:g} s before {earlier}", request_id=request_id
                )

    @rule("queue-time", "the time in queue is not first scheduled minus arrival")
    def _queue_time(self, metrics: RequestMetrics, request_id: str) -> Iterator[Finding]:
        if metrics.time_in_queue is None or metrics.first_scheduled_time is None:
            return
        waited = metrics.first_scheduled_time - metrics.arrival_time
        if abs(metrics.time_in_queue - waited) > _TIME_TOLERANCE:
            yield self.of_engine(
                f"time_in_queue is {metrics.time_in_queue:g} s, first scheduled minus arrival"
                f" {waited:g} s",
                request_id=request_id,
            )


def _are_right(metrics: RequestMetrics) -> bool:
    """Returns whether the times of a running request are in order, without naming them."""
    arrival, first, token = (
        metrics.arrival_time,
        metrics.first_scheduled_time,
        metrics.first_token_time,
    )
    if first is None or metrics.time_in_queue is None or metrics.finished_time is not None:
        return False
    is_in_order = arrival <= first and (token is None or first <= token <= metrics.last_token_time)
    return is_in_order and abs(metrics.time_in_queue - first + arrival) <= _TIME_TOLERANCE
