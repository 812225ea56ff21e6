"""The explanation of one request's latency, read from a timeline."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

from seqtop.explain.chain import BlockHolder, Chain, Part
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.state import EngineState, RequestState
from seqtop.wire import parsing
from seqtop.wire.messages import Event, RequestFinished

_MAX_HOLDERS = 8
"""The most parts for which the holder of the blocks is looked up: each takes a seek."""
_FINISHED = b"RequestFinished"
_WAITS = ("queued", "preempted", "swapped")


class Explanation:
    """Reads the time of a request from a timeline, in slices.

    Args:
        timeline: The timeline; it may grow.
        request: The request, as it is at `position`.
        position: The position up to which its time is explained.
    """

    def __init__(self, timeline: Timeline, request: RequestState, position: int) -> None:
        self.request_id = request.request_id
        self.metrics = replace(request.metrics)
        self.finish_reason = request.finish_reason
        self.error = ""
        """One sentence if the timeline could not be read to the end."""
        self._timeline = timeline
        self._chain = Chain(request)
        self._num_holders = 0
        self._events: Iterator[tuple[int, Event | None]] = iter(())
        self._stop = position
        index = timeline.index
        arrived = index.at_time(request.metrics.arrival_time)
        before = index.previous_step(arrived)
        self.first = timeline.first if before is None else before
        """The position from which it is read: before the step in which the request arrived."""
        self.position = -1
        """The last position that has been read; -1 before the first."""

    @property
    def is_complete(self) -> bool:
        """True if everything up to the position has been read, or the timeline is unreadable."""
        if self.error:
            return True
        has_end = self._chain.is_finished or self.position >= self._stop
        return has_end and self._next_held() is None

    @property
    def now(self) -> float:
        """The time up to which an unfinished request is explained, epoch seconds."""
        return self._timeline.index[min(self._stop, self._timeline.last)].time

    def extend(self, request: RequestState, position: int) -> bool:
        """Explains the time up to `position` too, if that is later.

        Args:
            request: The request, as it is at `position`.
            position: A position of the same run of the engine.

        Returns:
            False if another explanation is needed: for another request, or one whose times of the
            first token or the end have become known.
        """
        chain, metrics = self._chain, request.metrics
        is_same = request.request_id == self.request_id
        if not is_same or metrics.arrival_time != chain.arrival_time:
            return False
        if position > self._stop:
            times = metrics.first_token_time, metrics.finished_time
            if times != (chain.first_token_time, chain.finished_time):
                return False
            self._stop = position
        return True

    def advance(self, seconds: float) -> bool:
        """Reads for about this many seconds; returns whether there is more to read."""
        deadline = time.monotonic() + seconds
        with self._timeline.lock:
            while not self.is_complete:
                try:
                    self._read_next()
                except RecordingError as error:
                    self.error = f"The history cannot be read: {error}."
                if time.monotonic() >= deadline:
                    break
        return not self.is_complete

    def parts(self) -> list[Part]:
        """Returns the parts in order of time; that of an unfinished request go up to `now`."""
        last = self._chain.open_part(self.now) if self.is_complete else None
        return [*self._chain.parts, *([last] if last is not None else [])]

    def _read_next(self) -> None:
        chain = self._chain
        if self.position < 0:
            state = self._timeline.at(self.first)
            self.position = max(self.first, self._timeline.first)
            self._resume(state)
        elif chain.is_finished or self.position >= self._stop:
            self._look_up_holder()
        elif (following := next(self._events, None)) is None:
            self._events = self._timeline.events(self.position, self._stop)
        else:
            position, event = following
            if event is None or position != self.position + 1:
                self._resume(self._timeline.at(position))
            else:
                self._apply(position, event)
            self.position = position

    def _apply(self, position: int, event: Event) -> None:
        """Explains the time up to the end of an event."""
        if isinstance(event, RequestFinished) and event.request_id == self.request_id:
            self._chain.end()
        else:
            self._chain.apply(position, event)

    def _resume(self, state: EngineState) -> None:
        """Continues from a state that the events so far do not lead to, or begins with it."""
        request = state.requests.get(self.request_id)
        if state.info is not None:
            self._chain.budget = state.info.max_num_batched_tokens
        self._chain.last_end = state.blocked.until or -math.inf
        # An id may be used again after its request has finished.
        if request and request.metrics.arrival_time == self._chain.arrival_time:
            self._chain.resume(request, state.time)

    def _next_held(self) -> Part | None:
        """Returns the next wait for blocks whose holder is not looked up."""
        if self._num_holders >= _MAX_HOLDERS:
            return None
        for part in self._chain.parts:
            is_for_blocks = part.kind in _WAITS and part.cause == "no_blocks"
            if is_for_blocks and not part.has_holder and part.position is not None:
                return part
        return None

    def _look_up_holder(self) -> None:
        part = self._next_held()
        assert part is not None, "it is not complete"
        assert part.position is not None, "the part has a step"
        part.has_holder = True
        self._num_holders += 1
        if part.position >= self._timeline.first:
            state = self._timeline.at(part.position)
            part.holder = _holder(self._timeline, state, part.position, self.request_id)


def explain(timeline: Timeline, request: RequestState, position: int) -> Explanation:
    """Returns the whole explanation of a request, as it is at `position`.

    Raises:
        RecordingError: The timeline cannot be read.
    """
    explanation = Explanation(timeline, request, position)
    while explanation.advance(1.0):
        pass
    if explanation.error:
        raise RecordingError(explanation.error)
    return explanation


def find_request(timeline: Timeline, request_id: str) -> tuple[RequestState, int] | None:
    """Finds the last request of an id, and the position where it finished or the last one.

    Raises:
        RecordingError: The timeline cannot be read.
    """
    request = timeline.at(timeline.last).requests.get(request_id)
    if request is not None:
        return request, timeline.last
    name = request_id.encode()
    end = None
    for position, payload in timeline.payloads(timeline.first, timeline.last):
        if payload is None:  # the state before a gap may be the last one that has it
            if request_id in timeline.at(position - 1).requests:
                end = position - 1
        elif _FINISHED in payload and name in payload:
            event = parsing.event(payload)
            if isinstance(event, RequestFinished) and event.request_id == request_id:
                end = position
    return None if end is None else (timeline.at(end).requests[request_id], end)


def _holder(
    timeline: Timeline, state: EngineState, position: int, request_id: str
) -> BlockHolder | None:
    """Returns the request other than `request_id` with the most blocks in its tables."""
    blocks: dict[str, set[int]] = {}
    for sequence in state.sequences.values():
        if sequence.block_table and sequence.request_id != request_id:
            blocks.setdefault(sequence.request_id, set()).update(sequence.block_table)
    if not blocks:
        return None
    owner = max(blocks, key=lambda name: len(blocks[name]))
    request = state.requests[owner]
    return BlockHolder(
        owner,
        len(blocks[owner]),
        state.stats.num_used_blocks if state.stats else len(set().union(*blocks.values())),
        request.num_prompt_tokens,
        _admitted_step(timeline, request, position),
    )


def _admitted_step(timeline: Timeline, request: RequestState, position: int) -> int | None:
    """Returns the step in which a request was last admitted, if it is recorded."""
    start = None
    for span in reversed(request.spans):
        if span.kind not in ("prefill", "decode"):
            break
        start = span.start
    index = timeline.index
    if start is None or start < index[timeline.first].time:
        return None
    step_end = index.next_step(index.at_time(start))
    if step_end is None or index[step_end].step > index[position].step:
        return None
    return index[step_end].step
