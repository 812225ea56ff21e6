"""The times of one step: readings of the engine's clock, and durations of its parts."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from seqtop.sequence import SequenceGroup


class StepTimer:
    """Times a step, from its construction on. Each `mark_…` method ends one part of the step.

    Attributes:
        start_time: When the step began, in seconds since the epoch.
        end_time: When its outputs had been processed, likewise.
        scheduler_time: Duration of scheduling, in seconds.
        model_forward_time: Duration of the forward pass, in seconds.
        model_execute_time: Duration of the worker's part, in seconds.

    Args:
        clock: Returns the time of day, in seconds since the epoch.
        timer: Returns the seconds since any fixed time, for durations.
    """

    def __init__(
        self, clock: Callable[[], float], timer: Callable[[], float] = perf_counter
    ) -> None:
        self._clock, self._timer = clock, timer
        self._begin = self._last_mark = timer()
        self.start_time = clock()
        self.end_time = self.start_time
        self.scheduler_time = 0.0
        self.model_forward_time = 0.0
        self.model_execute_time = 0.0

    def mark_scheduled(self) -> None:
        """Ends scheduling."""
        self.scheduler_time = self._since_last_mark()

    def mark_executed(self, model_forward_time: float) -> None:
        """Ends the worker's part, in which the forward pass took `model_forward_time` seconds."""
        self.model_execute_time = self._since_last_mark()
        self.model_forward_time = model_forward_time

    def mark_processed(self) -> None:
        """Ends the processing of outputs."""
        self.end_time = self._clock()

    def update_metrics(self, seq_group: SequenceGroup, *, has_sampled: bool) -> bool:
        """Adds the step to the metrics of a group that ran in it.

        Returns:
            Whether more has changed than what follows from the times of the step.
        """
        metrics = seq_group.metrics
        has_changed = False
        if metrics.first_scheduled_time is None:
            seq_group.maybe_set_first_scheduled_time(self.start_time)
            has_changed = True
        if has_sampled:
            if metrics.first_token_time is None:
                seq_group.maybe_set_first_token_time(self.end_time)
                has_changed = True
            seq_group.set_last_token_time(self.end_time)
        metrics.scheduler_time = (metrics.scheduler_time or 0.0) + self.scheduler_time
        metrics.model_forward_time = (metrics.model_forward_time or 0.0) + self.model_forward_time
        metrics.model_execute_time = (metrics.model_execute_time or 0.0) + self.model_execute_time
        return has_changed

    def step_time(self) -> float:
        """Returns the duration of the step so far, in seconds."""
        return self._timer() - self._begin

    def _since_last_mark(self) -> float:
        now = self._timer()
        duration, self._last_mark = now - self._last_mark, now
        return duration
