"""The journal of an engine's steps, which an adapter keeps on the engine's own thread.

The observer of an engine adds to it what happens: preemptions, batches, ends. `send_step` reports
all of that when the outputs of a batch have been processed, and the next step begins empty.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from seqtop.adapters.observations import (
    AllRequests,
    AnyObservation,
    Counts,
    CurrentRequest,
    Preempted,
    RequestEnded,
    Scheduled,
    Stepped,
    SwappedOut,
)


class ReportedRequest(msgspec.Struct, gc=False):
    """An unfinished request, as far as it has been reported."""

    id: str
    num_output: int = 0
    """The reported tokens of its output."""

    def take_output(self, token_ids: list[int]) -> list[int]:
        """Returns the tokens of an output that have not been reported; from now on they are."""
        num_reported, self.num_output = self.num_output, len(token_ids)
        return token_ids[num_reported:]


_MAX_IN_FLIGHT: Final = 256
"""Batches that are remembered until their outputs arrive. Engines have a few: as many as their
pipeline has stages, and one more for asynchronous scheduling."""


class Batch(msgspec.Struct, gc=False):
    """A batch whose outputs have not been processed."""

    content: Any
    """The engine's object by which it is found again."""
    run: Scheduled
    launched_at: float | None
    """The time at which the model got it, as of the timer; `None` for one that was launched before
    the engine was observed, of which the times are unknown."""


class StepJournal:
    """Collects what an engine does, and reports it step by step.

    Args:
        send: Sends an observation.
        clock: Returns the time in seconds since the epoch.
        timer: Returns seconds since some time, to measure durations.

    Attributes:
        start_time: The time at which the last batch began to be made.
        started_at: The same, as of the timer.
        num_schedule_calls: Batches that were made so far.
        in_flight: Batches whose outputs have not been processed.
        preempted: Requests that were preempted since the last batch.
        swapped_out: Requests that were swapped out since then.
        scheduled: Batches that were made since the last report.
        ended: Requests that ended since then.
    """

    def __init__(
        self,
        send: Callable[[AnyObservation], None],
        clock: Callable[[], float],
        timer: Callable[[], float],
    ) -> None:
        self.start_time = self.started_at = 0.0
        self.num_schedule_calls = 0
        self.in_flight: deque[Batch] = deque(maxlen=_MAX_IN_FLIGHT)
        self._created_at = clock()
        self._send, self._clock, self._timer = send, clock, timer
        self._processed_at = 0.0
        self._clear()

    def _clear(self) -> None:
        self.preempted: list[Preempted] = []
        self.swapped_out: list[SwappedOut] = []
        self.scheduled: list[Scheduled] = []
        self.ended: list[RequestEnded] = []
        self._ran: list[str] = []
        """The requests of the last reported step."""
        self._running: list[str] = []
        """The running queue as it was reported last; empty if it must be reported."""

    def begin_schedule(self, *_: Any, **__: Any) -> None:
        """Notes the time at which a batch begins to be made. To be called before the method."""
        self.start_time, self.started_at = self._clock(), self._timer()

    def begin_processing(self, *_: Any, **__: Any) -> None:
        """Notes the time of a batch's outputs. To be called before the method."""
        self._processed_at = self._timer()

    def add_scheduled(self, run: Scheduled) -> Scheduled:
        """Adds the making of a batch, which takes over the preemptions since the last one."""
        run.preempted, run.swapped_out = self.preempted, self.swapped_out
        self.preempted, self.swapped_out = [], []
        self.scheduled.append(run)
        return run

    def take_batch(self, content: Any, is_same: Callable[[Any, Any], bool] = operator.is_) -> Batch:
        """Returns the batch with a content. Those that were launched before it have failed.

        Args:
            content: The engine's object.
            is_same: Compares it with that of a batch.
        """
        for index, batch in enumerate(self.in_flight):
            if is_same(batch.content, content):
                for _ in range(index + 1):
                    self.in_flight.popleft()
                return batch
        return self.unobserved(content)

    def unobserved(self, content: Any) -> Batch:
        """Returns a batch that was launched before the engine was observed.

        Those after it are still in flight. It began, as far as is known, when the journal did.
        """
        self.num_schedule_calls += 1
        return Batch(content, Scheduled(self._created_at), None)

    def send_step(
        self,
        batch: Batch,
        num_scheduled_tokens: dict[str, int],
        running: list[str],
        *,
        output_ids: list[str] | None,
        **contents: Any,
    ) -> None:
        """Reports a step. What is as in the last one is left out.

        Args:
            batch: The batch whose outputs have been processed.
            num_scheduled_tokens: The tokens of each request in it.
            running: The running queue.
            output_ids: The requests that have new tokens; `None` for all that ran.
            contents: Further fields of `Stepped`.
        """
        ran = list(num_scheduled_tokens)
        scheduler_time: float | None = None
        execute_time: float | None = None
        if batch.launched_at is not None:
            scheduler_time = batch.run.duration
            execute_time = max(self._processed_at - batch.launched_at, 0.0)
        # Most of a message: the same hundreds of ids in each step of a decoding batch.
        is_repeated = ran == self._ran and sum(num_scheduled_tokens.values()) == len(ran)
        is_same_queue = bool(running) and running == self._running
        self._ran, self._running = ran, running
        step = Stepped(
            scheduled=self.scheduled,
            start_time=batch.run.start_time,
            scheduler_time=scheduler_time,
            execute_time=execute_time,
            time=self._clock(),
            num_scheduled_tokens=None if is_repeated else num_scheduled_tokens,
            output_ids=None if output_ids == ran else output_ids,
            running=None if is_same_queue else running,
            ended=self.ended,
            num_schedule_calls=self.num_schedule_calls,
            **contents,
        )
        self.scheduled, self.ended = [], []
        self._send(step)

    def send_all(self, requests: list[CurrentRequest], counts: Counts, **contents: Any) -> None:
        """Reports the present state of all requests, which includes what was not reported.

        Args:
            requests: The running ones in their order, then the waiting ones in theirs.
            counts: Numbers at this time.
            contents: Further fields of `AllRequests`.
        """
        self._clear()
        self._send(AllRequests(self._clock(), requests, counts, **contents))
