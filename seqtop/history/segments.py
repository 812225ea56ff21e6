"""Divides the events of a session into segments.

A segment is a keyframe and the batches of events after it. A batch is compressed, written and read
as one. A segment begins with the first event, wherever a snapshot replaced the state, and often
enough in between that seeking is fast. A `SegmentSink` stores them: `MemoryStore` in memory,
`FileWriter` in a file.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from seqtop.history.event_index import ORDINARY, EventKind, IndexEntry, kind_of
from seqtop.history.keyframe import EncodedKeyframe, FinishedRequest, KeyframeEncoder
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.wire.arrays import Floats, Ints
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Event

BATCH_BYTES = 128 * 2**10
"""Payload bytes at which a batch is complete."""

SEGMENT_BYTES = 512 * 2**10
"""Payload bytes at which a segment is complete, if its keyframe is not larger still.

Applying so many takes about 20 ms on one core. Keyframes then take about as much space as events.
"""

_EVENT_WEIGHT = 200
"""Bytes added for each event, because small events take time to apply, too."""

_FINISHED_GROUP = 256
"""Maximum number of finished requests that are compressed, and later read, together."""


class Gap(msgspec.Struct, array_like=True, frozen=True):
    """A gap in the recorded time: at `position` a snapshot replaced the state."""

    position: int
    restarted: bool
    """True if another run of the engine begins here."""
    num_missed: int
    """Number of messages, of the run after the gap, that were not recorded."""

    def __str__(self) -> str:
        if self.restarted:
            return "the engine was restarted"
        noun = "message" if self.num_missed == 1 else "messages"
        return f"{self.num_missed:,} {noun} missing"


class EventArrays(msgspec.Struct, array_like=True):
    """Consecutive events, one element for each in every array."""

    position: int
    """Position of the first event."""
    number: int
    """Sequence number of the first message; the numbers of the others follow without a gap."""
    sizes: Ints = msgspec.field(default_factory=lambda: Ints("i"))
    """Length of each payload in bytes."""
    times: Floats = msgspec.field(default_factory=lambda: Floats("d"))
    """The engine's clock after each event, in epoch seconds."""
    steps: Ints = msgspec.field(default_factory=lambda: Ints("q"))
    """The last step after each event."""
    kinds: Ints = msgspec.field(default_factory=lambda: Ints("b"))
    """The `EventKind` of each event."""


class SegmentSink(Protocol):
    """A store of segments."""

    def compress(self, data: bytes | bytearray) -> bytes:
        """Compresses data of a segment."""

    def store_entry(self, entry: IndexEntry) -> None:
        """Stores the index entry of the next position."""

    def store_batch(self, batch: EventArrays, payloads: bytearray) -> None:
        """Stores a complete batch and its joined payloads."""

    def store_finished(self, first: int, requests: list[FinishedRequest]) -> None:
        """Stores finished requests, numbered from `first`."""

    def store_keyframe(
        self, position: int, keyframe: EncodedKeyframe, entry: IndexEntry, gap: Gap | None
    ) -> None:
        """Stores a keyframe; a new segment begins with it."""


class SegmentBuilder:
    """Divides a stream of events and snapshots into segments; not safe to use from two threads.

    Args:
        sink: The store of the segments.
    """

    def __init__(self, sink: SegmentSink) -> None:
        self.batch: EventArrays | None = None
        """The events that are not stored yet."""
        self.batch_payloads = bytearray()
        """The payloads of `batch`, joined."""
        self._sink = sink
        self._position = 0
        """Position of the newest entry."""
        self._keyframes = KeyframeEncoder(sink.compress)
        self._has_begun = False
        self._incarnation = ""
        self._number = -1
        self._weight = 0
        self._keyframe_size = 0

    def record(self, change: StateChange) -> None:
        """Records a change of a session's state; a `Listener`.

        Raises:
            WireError: The new state cannot be encoded.
            RecordingError: The change cannot be stored.
        """
        if change.event is None:
            self.restore(change.incarnation, change.sequence_number, change.state)
        else:
            self.append(change.sequence_number, change.payload, change.event, change.state)

    def append(self, number: int, payload: bytes, event: Event, state: EngineState) -> None:
        """Adds message `number`; its `event` has just been applied to `state`.

        A timeline that begins with an event has an empty state before it. `end_segment` comes next.

        Raises:
            RecordingError: The event cannot be stored.
        """
        number = _clamp(number)
        if not self._has_begun:
            incarnation = state.info.incarnation if state.info else ""
            self.restore(incarnation, -1, EngineState(max_finished=state.max_finished))
        if self.batch is not None and number != self._number + 1:
            self.end_batch()
        self._position += 1
        self._number = number
        if self.batch is None:
            self.batch = EventArrays(self._position, number)
        entry = self._entry(state, kind_of(event))
        batch = self.batch
        batch.sizes.append(len(payload))
        batch.times.append(entry.time)
        batch.steps.append(entry.step)
        batch.kinds.append(entry.kind)
        self.batch_payloads += payload
        self._sink.store_entry(entry)
        self._weight += len(payload) + _EVENT_WEIGHT
        if len(self.batch_payloads) >= BATCH_BYTES:
            self.end_batch()

    def end_segment(self, state: EngineState, lock: AbstractContextManager[object]) -> None:
        """Begins a new segment if the present one is large enough.

        Args:
            state: The state after the newest event.
            lock: The lock of the store. It is not held while the state is encoded and compressed,
                which takes a tenth of a second for 10,000 sequences.

        Raises:
            RecordingError: The keyframe cannot be stored.
        """
        if self._weight < max(SEGMENT_BYTES, self._keyframe_size):
            return
        with lock:
            self.end_batch()  # before the state takes memory, too
        self._weight = 0
        # A state that cannot be encoded is reached by applying events to an earlier keyframe.
        with contextlib.suppress(WireError):
            keyframe = self._keyframes.encode(state)
            with lock:
                self._begin_segment(keyframe, self._entry(state, ORDINARY), None)

    def restore(self, incarnation: str, number: int, state: EngineState) -> None:
        """Adds a snapshot: `state`, which contains all messages up to `number`.

        The first call begins the timeline; any other call makes a gap.

        Args:
            incarnation: Identifies the run of the engine.
            number: Sequence number of the last message in `state`; -1 for none.
            state: The state, which may change afterwards.

        Raises:
            WireError: The state cannot be encoded.
            RecordingError: The state cannot be stored.
        """
        keyframe = self._keyframes.encode(state)
        number = _clamp(number)
        gap, kind = None, ORDINARY
        if self._has_begun:
            self.end_batch()
            self._position += 1
            restarted = incarnation != self._incarnation
            missed = number + 1 if restarted else max(number - self._number, 0)
            gap = Gap(self._position, restarted, missed)
            kind = EventKind.RESYNC | EventKind.RESTART if restarted else EventKind.RESYNC
        self._has_begun, self._incarnation, self._number = True, incarnation, number
        entry = self._entry(state, kind)
        self._sink.store_entry(entry)
        self._begin_segment(keyframe, entry, gap)

    def _entry(self, state: EngineState, kind: EventKind) -> IndexEntry:
        return IndexEntry(self._number, state.time, _clamp(state.step), kind)

    def _begin_segment(self, keyframe: EncodedKeyframe, entry: IndexEntry, gap: Gap | None) -> None:
        for start in range(0, len(keyframe.finished), _FINISHED_GROUP):
            requests = keyframe.finished[start : start + _FINISHED_GROUP]
            self._sink.store_finished(keyframe.first_finished + start, requests)
        self._sink.store_keyframe(self._position, keyframe, entry, gap)
        self._weight = 0
        self._keyframe_size = keyframe.length

    def end_batch(self) -> None:
        """Stores the events that are not stored yet.

        Raises:
            RecordingError: They cannot be stored.
        """
        batch, self.batch = self.batch, None
        payloads, self.batch_payloads = self.batch_payloads, bytearray()
        if batch is not None:
            self._sink.store_batch(batch, payloads)


def _clamp(value: int) -> int:
    """Returns the nearest 8-byte integer; numbers from the network may be larger."""
    return max(-(2**63), min(value, 2**63 - 1))
