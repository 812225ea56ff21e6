"""Traces as a load for the engine: their requests are added when they are due."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from seqtop.sequence import SamplingParams
from seqtop.whatif.traces import Trace, TraceTokens, block_size_of, followers, names

if TYPE_CHECKING:
    from engine_stub.entrypoints.server import EngineServer
    from engine_stub.step_record import StepRecord


class LoadSource:
    """Adds the requests of a trace when they are due, and is a `RequestSource`.

    Args:
        trace: The trace, whose requests fit the engine.
        vocab_size: The tokens of the model.
        block_size: Tokens per block of the engine, which the trace's may differ from.
        clock: The engine's clock, epoch seconds.

    Raises:
        TraceError: The numbers of blocks do not fit the lengths.
    """

    def __init__(
        self, trace: Trace, *, vocab_size: int, block_size: int, clock: Callable[[], float]
    ) -> None:
        self._requests = trace.requests
        self._names = [*names(trace.requests)]
        self._tokens = TraceTokens(vocab_size, block_size_of(trace.requests, block_size))
        self._clock = clock
        self._start: float | None = None
        follow = followers(trace.requests)
        self._following = {self._names[before]: place for place, before in follow.items()}
        """The place of the request that follows another one, by the id of that one."""
        self._due = [
            (request.arrival or 0.0, place)
            for place, request in enumerate(trace.requests)
            if place not in follow
        ]
        """A heap of the seconds since the start, and the place of a request."""
        heapq.heapify(self._due)

    def serve(self, server: EngineServer) -> None:
        """Adds the requests that are due. Their times count from the first call."""
        now = self._clock()
        if self._start is None:
            self._start = now
        while self._due and self._start + self._due[0][0] <= now:
            since, place = heapq.heappop(self._due)
            request = self._requests[place]
            params = SamplingParams(
                temperature=0.0, max_tokens=request.output_length, ignore_eos=True
            )
            server.add(
                self._names[place],
                self._tokens.prompt(request, place),
                params,
                request.priority,
                arrival_time=self._start + since,
            )

    def stepped(self, record: StepRecord) -> None:
        """Expects the requests that follow those that have ended."""
        for group in (*record.finished, *record.ignored, *record.aborted):
            place = self._following.pop(group.request_id, None)
            if place is not None and self._start is not None:
                since = self._clock() - self._start + self._requests[place].delay
                heapq.heappush(self._due, (since, place))
