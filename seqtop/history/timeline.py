"""States of the past: any moment on record as a state of its own.

A record is segments, each a keyframe and the batches of events that follow it; reading one back
is the same whether it is kept in memory (`seqtop.history.memory_store`) or in a file
(`seqtop.history`). Positions are those of `seqtop.history.event_index`.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import threading
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import msgspec

from seqtop.history.event_index import EventIndex, EventKind
from seqtop.history.keyframe import FinishedRequest, decode_ended, restore
from seqtop.history.segments import Gap
from seqtop.state import EngineState
from seqtop.wire import parsing
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Event

_SPARE_ENDED = 20_000
"""Finished requests kept decoded beyond those that the last state needed."""


class RecordingError(Exception):
    """Something on record cannot be written or read; `str()` is one sentence for the user."""


class CompressedData(msgspec.Struct):
    """Bytes that a timeline has put somewhere."""

    place: Any
    """Where: for the timeline alone to understand."""
    size: int
    """Bytes they take there."""


class StoredBatch(msgspec.Struct):
    position: int
    """Of the first event in it."""
    sizes: array[int]
    """Length of each payload."""
    stored: CompressedData


class StoredEnded(msgspec.Struct):
    """Some finished requests."""

    first: int
    """The number of the first."""
    count: int
    stored: CompressedData


def payloads(
    data: bytes | bytearray, sizes: array[int], first: int, last: int
) -> list[bytes | None]:
    """Those from index `first` to `last`, or to the end, of the payloads in `data`."""
    ends = list(itertools.accumulate(sizes, initial=0))
    last = min(last, len(sizes) - 1)
    return [bytes(data[ends[index] : ends[index + 1]]) for index in range(first, last + 1)]


class Segment(msgspec.Struct):
    """A keyframe and what follows until the next."""

    position: int
    """Of the state in the keyframe."""
    keyframe: CompressedData
    lowest_ended: int
    """No finished request with a lower number is in the keyframe."""
    batches: list[StoredBatch] = []


class Timeline(ABC):
    """What was recorded, from position `first` to `last`; safe to use from several threads.

    Methods take any position and use the nearest that is on record.
    """

    def __init__(self) -> None:
        self.index = EventIndex()
        """Where what is."""
        self.gaps: list[Gap] = []
        """The holes, in order."""
        self.lock = threading.RLock()
        """Hold it to find a position and go there before it can be dropped."""
        self._segments: list[Segment] = []
        self._ended: list[StoredEnded] = []
        self._decoded: dict[int, FinishedRequest] = {}

    @property
    def first(self) -> int:
        """The earliest position on record."""
        return self.index.first

    @property
    def last(self) -> int:
        """The newest position on record."""
        return self.index.last

    def at(self, position: int) -> EngineState:
        """The state as it was at `position`: a new one, which may be applied to.

        Finished requests are shared with other states.

        Raises:
            RecordingError: the stretch it is in cannot be read.
        """
        with self.lock:
            if not self._segments:
                return EngineState()
            with _garbage_left_alone():
                return self._at(position)

    def seek(self, step: int) -> EngineState:
        """The state right before step `step + 1` began, of the engine's newest start."""
        return self.at(self.index.at_step(step))

    def events(self, start: int, stop: int) -> Iterator[tuple[int, Event | None]]:
        """Each moment after position `start` up to `stop` with its event.

        `None` stands for a snapshot: there the state goes on from `at(position)`.

        Raises:
            RecordingError: a stretch in between cannot be read.
        """
        position = max(start, self.first)
        while position < min(stop, self.last):
            for payload in self._payloads(position + 1, stop):
                position += 1
                yield position, None if payload is None else self._event(position, payload)

    def keyframe_before(self, position: int) -> int:
        """The position of the last keyframe that is not after `position`."""
        with self.lock:
            return self._segment(position).position if self._segments else self.first

    def keyframe_after(self, position: int) -> int | None:
        """The position of the first keyframe after `position`, if there is one."""
        with self.lock:
            place = bisect_right(self._segments, position, key=attrgetter("position"))
            return self._segments[place].position if place < len(self._segments) else None

    def _at(self, position: int) -> EngineState:
        segment = self._segment(position)
        state = self._restored(segment)
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
        """Some payloads from position `start` on, `None` for a snapshot; at least one."""
        with self.lock:
            place = bisect_left(self._segments, start, key=attrgetter("position"))
            here = self._segments[place : place + 1]
            if here and here[0].position == start and self.index[start].kind & EventKind.RESYNC:
                return [None]
            if place == 0:
                raise RecordingError(f"what happened at {start} is no longer on record")
            batches = self._segments[place - 1].batches
            batch = batches[bisect_right(batches, start, key=attrgetter("position")) - 1]
            data = self._read(batch.stored)
            return payloads(data, batch.sizes, start - batch.position, stop - batch.position)

    def _segment(self, position: int) -> Segment:
        place = bisect_right(self._segments, position, key=attrgetter("position"))
        return self._segments[max(place - 1, 0)]

    def _restored(self, segment: Segment) -> EngineState:
        try:
            state = restore(self._read(segment.keyframe), self._ended_request)
        except WireError as error:
            raise RecordingError(
                f"the keyframe at {segment.position} cannot be read: {error}"
            ) from error
        if len(self._decoded) > _SPARE_ENDED + len(state.finished):
            self._decoded.clear()
        return state

    def _ended_request(self, number: int) -> FinishedRequest:
        found = self._decoded.get(number)
        if found is not None:
            return found
        place = bisect_right(self._ended, number, key=attrgetter("first")) - 1
        if place < 0 or number >= self._ended[place].first + self._ended[place].count:
            raise WireError(f"finished request {number} is not on record")
        stored = self._ended[place]
        entries = decode_ended(self._read(stored.stored))
        if len(entries) != stored.count:
            raise WireError(f"{len(entries)} finished requests where {stored.count} should be")
        self._decoded.update(enumerate(entries, stored.first))
        return self._decoded[number]

    @abstractmethod
    def _read(self, stored: CompressedData) -> bytes:
        """Fetch and decompress.

        Raises:
            RecordingError: it cannot be read.
        """


class Cursor:
    """A position on a timeline and the state there, moved forward by applying what lies between."""

    def __init__(self, timeline: Timeline, position: int) -> None:
        self.timeline = timeline
        with timeline.lock:
            self.position = min(max(position, timeline.first), timeline.last)
            self.state = timeline.at(self.position)

    def move(self, position: int) -> set[int] | None:
        """Go to `position`, or the nearest on record.

        Returns the ids of the sequences that changed on the way, or `None` when `state` has been
        replaced by another object.

        Raises:
            RecordingError: a stretch cannot be read; the cursor is where reading ended.
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
        """Whether going on from here is less work than starting from a keyframe."""
        if not self.timeline.first <= self.position <= position:
            return False
        resync = self.timeline.index.next(EventKind.RESYNC, self.position)
        if resync is not None and resync <= position:
            return False
        keyframe = self.timeline.keyframe_before(position)
        return self.timeline.keyframe_before(keyframe - 1) <= self.position


@contextlib.contextmanager
def _garbage_left_alone() -> Iterator[None]:
    """Without the cyclic garbage collector, which would look at the whole heap several times.

    Building a state allocates enough to set it off and makes no cycles. In a viewer that has
    run for a while, one such look takes longer than building the state.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
