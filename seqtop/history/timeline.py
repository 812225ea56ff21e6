"""Recorded time: an index, and the state at every position.

A timeline is a list of segments, each a keyframe and the batches of events after it, and the
finished requests that the keyframes name. `MemoryStore` and `FileStore` store the compressed bytes
in memory and in a file. Positions are those of `EventIndex`.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import msgspec

from seqtop.history.event_index import EventIndex, EventKind
from seqtop.history.keyframe import FinishedRequest, decode_finished, restore
from seqtop.history.segments import Gap
from seqtop.state import EngineState
from seqtop.wire import parsing
from seqtop.wire.arrays import Ints
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Event


class RecordingError(Exception):
    """A timeline cannot be read or written; the message is one sentence for the user."""


class CompressedData(msgspec.Struct):
    """A zstd frame in a store."""

    location: Any
    """Identifies the frame to its store."""
    size: int
    """Compressed size in bytes."""


class CompressedBatch(msgspec.Struct):
    """The payloads of consecutive events."""

    position: int
    """Position of the first event."""
    sizes: Ints
    """Length of each payload in bytes."""
    data: CompressedData


class CompressedFinished(msgspec.Struct):
    """Consecutive finished requests."""

    first: int
    """Number of the first request."""
    count: int
    data: CompressedData


class Segment(msgspec.Struct):
    """A keyframe and the events up to the next one."""

    position: int
    """Position of the state in the keyframe."""
    keyframe: CompressedData
    lowest_finished: int = 0
    """The lowest number of a finished request in the keyframe, for a store that drops segments."""
    batches: list[CompressedBatch] = []


class Timeline(ABC):
    """Recorded time from position `first` to `last`; safe to use from several threads.

    Methods replace a position that is not recorded by the nearest one.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Hold it to find a position and go there before it can be dropped."""
        self._clear()

    def _clear(self) -> None:
        """Makes the timeline empty."""
        self.index = EventIndex()
        """Time, step and kind of each position."""
        self.gaps: list[Gap] = []
        """The gaps in order of their positions."""
        self._segments: list[Segment] = []
        self._finished: list[CompressedFinished] = []
        self._peeked: dict[int, Event] = {}
        """Events that were decoded ahead, by position."""
        self._decoded: dict[int, FinishedRequest] = {}
        """The finished requests of the state that was last restored, by number: the next one, which
        is often near, shares them."""

    @property
    def first(self) -> int:
        """The earliest position."""
        return self.index.first

    @property
    def last(self) -> int:
        """The newest position."""
        return self.index.last

    def at(self, position: int) -> EngineState:
        """Returns the state at `position`: a new object, to which events can be applied.

        The state shares its finished requests with other states.

        Raises:
            RecordingError: The state cannot be read.
        """
        with self.lock:
            if not self._segments:
                return EngineState()
            return self._at(position)

    def events(self, start: int, stop: int) -> Iterator[tuple[int, Event | None]]:
        """Yields each position after `start` up to `stop` with its event.

        At a snapshot the event is `None`; the state there is `at(position)`.

        Raises:
            RecordingError: An event cannot be read.
        """
        for position, payload in self.payloads(start, stop):
            event = self._peeked.pop(position, None)
            if event is None and payload is not None:
                event = self._event(position, payload)
            yield position, event

    def peek(self, position: int, payload: bytes) -> Event:
        """Decodes an event before the pass that reads it, which then gets the same object.

        Raises:
            RecordingError: The event cannot be read.
        """
        event = self._peeked.get(position)
        if event is None:
            event = self._peeked[position] = self._event(position, payload)
        return event

    def payloads(self, start: int, stop: int) -> Iterator[tuple[int, bytes | None]]:
        """Yields each position after `start` up to `stop` with its encoded event.

        At a snapshot there is no event, but `None`.

        Raises:
            RecordingError: The events cannot be read.
        """
        position = max(start, self.first)
        while position < min(stop, self.last):
            for payload in self._payloads(position + 1, stop):
                position += 1
                yield position, payload

    def keyframe_before(self, position: int) -> int:
        """Returns the position of the last keyframe that is not after `position`."""
        with self.lock:
            return self._segment(position).position if self._segments else self.first

    def keyframe_after(self, position: int) -> int | None:
        """Returns the position of the first keyframe after `position`, or `None`."""
        with self.lock:
            following = bisect_right(self._segments, position, key=attrgetter("position"))
            if following == len(self._segments):
                return None
            return self._segments[following].position

    def _at(self, position: int) -> EngineState:
        segment = self._segment(position)
        state = self._restore(segment)
        for _, event in self.events(segment.position, position):
            if event is not None:
                state.apply(event)
        return state

    def _event(self, position: int, payload: bytes) -> Event:
        try:
            return parsing.event(payload)
        except WireError as error:
            raise RecordingError(f"event {position} cannot be read: {error}") from error

    def _payloads(self, start: int, stop: int) -> list[bytes | None]:
        """Returns payloads from position `start` on, at least one; `None` for a snapshot."""
        with self.lock:
            following = bisect_left(self._segments, start, key=attrgetter("position"))
            segments = self._segments[following : following + 1]
            starts_segment = bool(segments) and segments[0].position == start
            if starts_segment and self.index[start].kind & EventKind.RESYNC:
                return [None]
            if following == 0:
                raise RecordingError(f"event {start} is no longer recorded")
            batches = self._segments[following - 1].batches
            batch = batches[bisect_right(batches, start, key=attrgetter("position")) - 1]
            joined = self._read(batch.data)
            return split_payloads(
                joined, batch.sizes, start - batch.position, stop - batch.position
            )

    def _segment(self, position: int) -> Segment:
        following = bisect_right(self._segments, position, key=attrgetter("position"))
        return self._segments[max(following - 1, 0)]

    def _restore(self, segment: Segment) -> EngineState:
        shared: dict[int, FinishedRequest] = {}

        def finished(number: int) -> FinishedRequest:
            shared[number] = self._finished_request(number)
            return shared[number]

        try:
            state = restore(self._read(segment.keyframe), finished)
        except WireError as error:
            raise RecordingError(
                f"the keyframe at {segment.position} cannot be read: {error}"
            ) from error
        self._decoded = shared
        return state

    def _finished_request(self, number: int) -> FinishedRequest:
        decoded = self._decoded.get(number)
        if decoded is not None:
            return decoded
        group = bisect_right(self._finished, number, key=attrgetter("first")) - 1
        if group < 0 or number >= self._finished[group].first + self._finished[group].count:
            raise WireError(f"finished request {number} is not recorded")
        stored = self._finished[group]
        requests = decode_finished(self._read(stored.data))
        if len(requests) != stored.count:
            raise WireError(f"{len(requests)} finished requests instead of {stored.count}")
        self._decoded.update(enumerate(requests, stored.first))
        return self._decoded[number]

    @abstractmethod
    def _read(self, data: CompressedData) -> bytes:
        """Reads and decompresses `data`.

        Raises:
            RecordingError: The data cannot be read.
        """


class Cursor:
    """A position on a timeline and the state there.

    Moves forward by applying events where that is less work than starting from a keyframe.

    Args:
        timeline: The timeline to read.
        position: First position; the nearest one that is recorded is used.

    Raises:
        RecordingError: The state there cannot be read.
    """

    def __init__(self, timeline: Timeline, position: int) -> None:
        self.timeline = timeline
        with timeline.lock:
            self.position = min(max(position, timeline.first), timeline.last)
            self.state = timeline.at(self.position)

    def move(self, position: int) -> set[int] | None:
        """Goes to `position`, or to the nearest one that is recorded.

        Returns:
            The ids of the sequences that changed, or `None` if `state` is another object now.

        Raises:
            RecordingError: An event or a keyframe cannot be read; the cursor stays where reading
                ended.
        """
        with self.timeline.lock:
            return self._move(position)

    def _move(self, position: int) -> set[int] | None:
        timeline = self.timeline
        position = min(max(position, timeline.first), timeline.last)
        if not self._is_near(position):
            self.state, self.position = timeline.at(position), position
            return None
        touched: set[int] = set()
        for reached, event in timeline.events(self.position, position):
            assert event is not None, "no snapshot lies between"
            touched.update(self.state.apply(event))
            self.position = reached
        return touched

    def _is_near(self, position: int) -> bool:
        """Returns whether applying events from here is less work than starting from a keyframe."""
        if not self.timeline.first <= self.position <= position:
            return False
        resync = self.timeline.index.next(EventKind.RESYNC, self.position)
        if resync is not None and resync <= position:
            return False
        keyframe = self.timeline.keyframe_before(position)
        return self.timeline.keyframe_before(keyframe - 1) <= self.position


def split_payloads(
    joined: bytes | bytearray, sizes: Ints, first: int, last: int
) -> list[bytes | None]:
    """Returns the payloads from index `first` to `last`, or to the last one there is."""
    ends = list(itertools.accumulate(sizes, initial=0))
    last = min(last, len(sizes) - 1)
    return [bytes(joined[ends[index] : ends[index + 1]]) for index in range(first, last + 1)]
