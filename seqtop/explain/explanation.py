"""The explanation of one request's latency, read from a timeline."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from dataclasses import replace

from seqtop.explain.chain import BlockHolder, Chain, Part
from seqtop.history.replay import Reader, Replay, ShowProgress, no_progress
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState, RequestState, holdings
from seqtop.wire import parsing
from seqtop.wire.errors import WireError
from seqtop.wire.message_tag import tag
from seqtop.wire.messages import Event, RequestArrived, RequestFinished

_MAX_HOLDERS = 8
"""The most parts for which the holder of the blocks is looked up: each takes a seek."""
_MAX_SIMILAR = 3
"""Similar requests that are named."""
_MAX_COMPARED = 10_000
"""The newest requests whose ids are compared with an unknown one."""
_WAITS = ("queued", "preempted", "swapped")


class Explanation(Reader):
    """Divides the time of a request, read from a timeline in slices, or as one of several readers.

    Args:
        timeline: The timeline; it may grow.
        request: The request, as it is at `position`.
        position: The position up to which its time is explained.
    """

    needs_state = False

    def __init__(self, timeline: Timeline, request: RequestState, position: int) -> None:
        self.request_id = request.request_id
        self.metrics = replace(request.metrics)
        self.finish_reason = request.finish_reason
        self.error = ""
        """One sentence if the timeline could not be read to the end."""
        self._timeline = timeline
        self._chain = Chain(request)
        self._num_holders = 0
        index = timeline.index
        arrived = index.at_time(request.metrics.arrival_time)
        before = index.previous_step(arrived)
        self.first = timeline.first if before is None else before
        """The position from which it is read: before the step in which the request arrived."""
        self.position = -1
        """The last position that has been read; -1 before the first."""
        self._stop = position
        self.is_read = False
        """True if another pass has given it all events up to the position."""
        self._replay = Replay(timeline, [self], first=self.first, last=position)

    @property
    def is_divided(self) -> bool:
        """True if no event up to the position is still to be read."""
        return self._chain.is_finished or self.is_read or not self._replay.is_behind

    @property
    def is_complete(self) -> bool:
        """True if everything up to the position has been read, or the timeline is unreadable."""
        return bool(self.error) or (self.is_divided and self._next_held() is None)

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
            self._stop = self._replay.last = position
            self.metrics = replace(metrics)
        return True

    def has_first_token_of(self, request: RequestState) -> bool:
        """Returns whether its parts are divided at the first token of a request."""
        return self._chain.first_token_time == request.metrics.first_token_time

    def advance(self, seconds: float) -> bool:
        """Reads for about this many seconds; returns whether there is more to read."""
        deadline = time.monotonic() + seconds
        with self._timeline.lock:
            while not self.is_complete:
                try:
                    if self.is_divided:
                        self._look_up_holder()
                    else:
                        self._replay.read()
                except RecordingError as error:
                    self.error = f"The history cannot be read: {error}."
                if time.monotonic() >= deadline:
                    break
        return not self.is_complete

    def parts(self) -> list[Part]:
        """Returns the parts in order of time; that of an unfinished request go up to `now`."""
        last = self._chain.open_part(self.now) if self.is_complete else None
        return [*self._chain.parts, *([last] if last is not None else [])]

    def start(self, position: int, state: EngineState) -> None:
        """Begins with a state, or continues from one that the events so far do not lead to."""
        self.position = position
        request = state.requests.get(self.request_id)
        if state.info is not None:
            self._chain.budget = state.info.max_num_batched_tokens
        self._chain.follow(state)
        # An id may be used again after its request has finished.
        if request and request.metrics.arrival_time == self._chain.arrival_time:
            self._chain.resume(request, state.time)

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Explains the time up to the end of an event."""
        self.position = position
        if isinstance(event, RequestFinished) and event.request_id == self.request_id:
            self._chain.end()
        else:
            self._chain.apply(position, event)

    def find_holder(self, state: EngineState, position: int) -> None:
        """Looks up the holder of the blocks if a wait for them has just begun.

        Args:
            state: The state at `position`.
            position: The position of the last event.
        """
        while (part := self._next_held()) is not None:
            self._set_holder(part, state, position)

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
        state = EngineState()
        if part.position >= self._timeline.first:
            state = self._timeline.at(part.position)
        self._set_holder(part, state, part.position)

    def _set_holder(self, part: Part, state: EngineState, position: int) -> None:
        part.has_holder = True
        self._num_holders += 1
        part.holder = _holder(self._timeline, state, position, self.request_id)


class ExplanationsReader(Reader):
    """Reads several explanations in one pass, with the holders of the blocks that they wait for.

    Args:
        explanations: The explanations, which have read nothing yet.
    """

    def __init__(self, explanations: Sequence[Explanation]) -> None:
        self._explanations = explanations
        self.state = EngineState()
        """The state after the last event."""

    def start(self, position: int, state: EngineState) -> None:
        """Starts, or continues after a gap."""
        self.state = state
        for explanation in self._explanations:
            if position >= explanation.first:
                explanation.start(position, state)

    def apply(self, position: int, event: Event, touched: Sequence[int]) -> None:
        """Reads an event for each explanation that has begun."""
        for explanation in self._explanations:
            if position == explanation.first:
                explanation.start(position, self.state)
            elif position > explanation.first and not explanation.is_divided:
                explanation.apply(position, event, touched)
                explanation.find_holder(self.state, position)

    def end(self) -> None:
        """Completes the explanations: nothing follows."""
        for explanation in self._explanations:
            explanation.is_read = True


def explain(
    timeline: Timeline,
    request: RequestState,
    position: int,
    progress: ShowProgress = no_progress,
) -> Explanation:
    """Returns the whole explanation of a request, as it is at `position`.

    Raises:
        RecordingError: The timeline cannot be read.
    """
    explanation = Explanation(timeline, request, position)
    reader = ExplanationsReader([explanation])
    Replay(timeline, [reader], first=explanation.first, last=position).run(progress)
    reader.end()
    known = reader.state.requests.get(request.request_id)
    if request.finish_reason is None and known is not None:
        explanation.metrics = replace(known.metrics)
        is_new = request.metrics.first_token_time is None
        if is_new and not explanation.has_first_token_of(known):  # the engine reported it late
            return explain(timeline, known, position, progress)
    return explanation


def find_request(timeline: Timeline, request_id: str) -> tuple[RequestState, int] | None:
    """Finds the last request of an id, and the position where it finished or the last one.

    Only the id, the metrics, the finish reason and the sequences are given, of one that has not
    finished as they were at its arrival, or in the keyframe after a gap: a pass that reads on to
    the position finds the others, and no message is decoded twice.

    Raises:
        RecordingError: The timeline cannot be read.
    """
    name = request_id.encode()
    found: tuple[RequestState, int] | None = None
    starts = [timeline.first]  # of the parts between gaps
    arrivals: list[RequestArrived | None] = [None]
    for position, payload in timeline.payloads(timeline.first, timeline.last):
        if payload is None:
            starts.append(position)
            arrivals.append(None)
        elif name in payload and tag(payload) in ("RequestArrived", "RequestFinished"):
            event = timeline.peek(position, payload)
            if isinstance(event, RequestArrived) and event.request_id == request_id:
                found, arrivals[-1] = None, event
            elif isinstance(event, RequestFinished) and event.request_id == request_id:
                found = finished_request(event), position
    if found is not None:
        return found
    # It has not finished, or where messages are missing.
    end = timeline.last
    for start, arrived in zip(reversed(starts), reversed(arrivals), strict=True):
        if arrived is not None:
            return arrived_request(arrived), end
        if (request := timeline.at(start).requests.get(request_id)) is not None:
            return request, end
        end = start - 1
    return None


def find_request_of_client(timeline: Timeline, request_id: str) -> tuple[RequestState, int] | None:
    """Finds a request as `find_request` does, also by the id that a client knows.

    For the first prompt of a completion `cmpl-X`, as its client knows it, vLLM has `cmpl-X-0`.

    Raises:
        RecordingError: The timeline cannot be read.
    """
    found = find_request(timeline, request_id)
    if found is None and request_id.startswith("cmpl-"):
        return find_request(timeline, f"{request_id}-0")
    return found


def request_ids(timeline: Timeline) -> list[str]:
    """Returns the ids of all recorded requests, the newest first.

    Raises:
        RecordingError: The timeline cannot be read.
    """
    names: dict[str, None] = {}
    for position in (timeline.first, *(gap.position for gap in timeline.gaps)):
        names |= dict.fromkeys(timeline.at(position).requests)
    for _, payload in timeline.payloads(timeline.first, timeline.last):
        if payload is not None and tag(payload) == "RequestArrived":
            try:
                event = parsing.event(payload)
            except WireError:
                continue
            if isinstance(event, RequestArrived):
                names[event.request_id] = None
    return [*reversed(names)]


def similar_ids(request_id: str, known: Sequence[str]) -> list[str]:
    """Returns up to three ids that are like an unknown one, the most similar first."""
    word, newest = request_id.lower(), known[:_MAX_COMPARED]
    parts = [name for name in newest if word in name.lower()]
    close = difflib.get_close_matches(request_id, newest, n=_MAX_SIMILAR)
    return [*dict.fromkeys((*close, *parts))][:_MAX_SIMILAR]


def finished_request(event: RequestFinished) -> RequestState:
    """Returns a finished request with what is known from the message about its end."""
    return RequestState(
        event.request_id,
        replace(event.metrics),
        [*event.seq_ids],
        finish_reason=SequenceStatus.get_finished_reason(event.status) or "stop",
    )


def arrived_request(event: RequestArrived) -> RequestState:
    """Returns a request with what is known from the message about its arrival."""
    state = EngineState()
    state.apply(event)
    return state.requests[event.request_id]


def _holder(
    timeline: Timeline, state: EngineState, position: int, request_id: str
) -> BlockHolder | None:
    """Returns the request other than `request_id` with the most blocks."""
    held = holdings.amounts(state, "no_blocks")
    owner = next((name for name in held if name != request_id), None)
    if owner is None:
        return None
    request = state.requests[owner]
    return BlockHolder(
        owner,
        held[owner],
        state.stats.num_used_blocks if state.stats else sum(held.values()),
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
