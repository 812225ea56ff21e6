"""Times in order, and durations that they add up to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from seqtop.checks.finding import Finding, Rules
from seqtop.sequence import RequestMetrics
from seqtop.state import EngineState
from seqtop.state.model import RequestState
from seqtop.wire.messages import Step

_TIME_TOLERANCE = 1e-6
"""Seconds by which a difference of two times may miss: rounding, not an error."""


class TimeRules(Rules):
    """Of steps and requests."""

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._last_step_time = -math.inf

    def step(self, step: Step) -> Iterator[Finding]:
        """Look at a step, and the one before it."""
        last, self._last_step_time = self._last_step_time, step.time
        if step.time < last:
            yield self.finding(
                "time-order", f"the step ends {last - step.time:g} s before the one before it"
            )
        if step.time < step.start_time:
            yield self.finding(
                "time-order", f"the step ends {step.start_time - step.time:g} s before it starts"
            )

    def request(self, request: RequestState) -> Iterator[Finding]:
        """Look at a request that ran, or has ended."""
        metrics: RequestMetrics = request.metrics
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
                yield self.finding(
                    "time-order",
                    f"{later} is {first - second:g} s before {earlier}",
                    request_id=request.request_id,
                )
        if metrics.time_in_queue is None or metrics.first_scheduled_time is None:
            return
        waited = metrics.first_scheduled_time - metrics.arrival_time
        if abs(metrics.time_in_queue - waited) > _TIME_TOLERANCE:
            yield self.finding(
                "queue-time",
                f"time_in_queue is {metrics.time_in_queue:g} s, first scheduled minus arrival"
                f" {waited:g} s",
                request_id=request.request_id,
            )
