"""Cuts what happens to a state into batches of events between keyframes.

A batch is what is compressed, written and read at once. A keyframe comes before the first batch,
wherever the state was replaced by a snapshot, and often enough in between that any state is
within reach. Where both go is up to the subclass: memory (`History`) or a file.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence

import msgspec

from seqtop.history.event_index import ORDINARY, EventKind, IndexEntry, kind_of
from seqtop.history.keyframe import EncodedKeyframe, FinishedArchive, FinishedRequest
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.wire.errors import WireError
from seqtop.wire.frames import Buffer
from seqtop.wire.messages import Event

BATCH_BYTES = 128 * 2**10
"""A batch is full when its payloads have so many bytes."""

SEGMENT_BYTES = 512 * 2**10
"""Payload bytes between keyframes, so many at least and at least as many as a keyframe has.

Applying them takes about 20 ms on one core; keyframes then cost about as much space as events."""

_EVENT_WEIGHT = 200
"""Counted in addition for every event: small ones take time to apply, too."""

_ENDED_AT_ONCE = 256
"""Finished requests that are stored, and later fetched, together at most."""


class Gap(msgspec.Struct, array_like=True, frozen=True):
    """A hole in the record: at `position` the state was taken anew from a snapshot."""

    position: int
    restarted: bool
    """Whether another start of the engine goes on from here."""
    num_missed: int
    """Messages that the snapshot contains and the record does not, of the engine's start that
    goes on; how much of an older one is missing is not known."""

    def __str__(self) -> str:
        if self.restarted:
            return "the engine was restarted"
        noun = "message" if self.num_missed == 1 else "messages"
        return f"{self.num_missed:,} {noun} missing"


class EventBatch(msgspec.Struct):
    """Consecutive events as columns, an element each, and their payloads end to end."""

    position: int
    """Of the first event."""
    number: int
    """Of the first event; the others' follow it without a hole."""
    sizes: array[int] = msgspec.field(default_factory=lambda: array("I"))
    """Length of each payload in bytes."""
    times: array[float] = msgspec.field(default_factory=lambda: array("d"))
    """The state's clock after each event."""
    steps: array[int] = msgspec.field(default_factory=lambda: array("q"))
    kinds: array[int] = msgspec.field(default_factory=lambda: array("B"))
    data: bytearray = msgspec.field(default_factory=bytearray)


class SegmentStart(msgspec.Struct):
    """A place where a keyframe stands."""

    position: int
    mark: IndexEntry
    taken: EncodedKeyframe
    gap: Gap | None
    incarnation: str


class SegmentBuilder(ABC):
    """Takes down events and snapshots; not safe to use from several threads at once."""

    def __init__(self) -> None:
        self.position = 0
        """Of the newest moment."""
        self._archive = FinishedArchive()
        self._batch: EventBatch | None = None
        self._begun = False
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
            self.restore(
                change.incarnation, change.sequence_number, change.state, encoded=change.encoded
            )
        else:
            self.append(change.sequence_number, change.payload, change.event, change.state)

    def append(self, number: int, payload: bytes, event: Event, state: EngineState) -> None:
        """Take down message `number`, whose `event` has just been applied to `state`.

        A tape that begins with an event begins with an empty state before it.

        Raises:
            RecordingError: it cannot be kept.
        """
        number = _fit(number)
        if not self._begun:
            incarnation = state.info.incarnation if state.info else ""
            self.restore(incarnation, -1, EngineState(max_finished=state.max_finished))
        if self._batch is not None and number != self._number + 1:
            self._end_batch()
        self.position += 1
        self._number = number
        if self._batch is None:
            self._batch = EventBatch(self.position, number)
        mark = self._mark(state, kind_of(event))
        batch = self._batch
        batch.sizes.append(len(payload))
        batch.times.append(mark.time)
        batch.steps.append(mark.step)
        batch.kinds.append(mark.kind)
        batch.data += payload
        self._noted(mark)
        self._weight += len(payload) + _EVENT_WEIGHT
        if self._weight >= max(SEGMENT_BYTES, self._keyframe_size):
            self._cut_if_possible(state)
        elif len(batch.data) >= BATCH_BYTES:
            self._end_batch()

    def restore(
        self,
        incarnation: str,
        number: int,
        state: EngineState,
        *,
        encoded: Sequence[Buffer] | None = None,
    ) -> None:
        """Take down that `state`, as it was after message `number`, replaces the one before.

        The first call says where the tape begins; any other leaves a gap in it. `encoded` is what
        the state has just been decoded from, a part after another, if it has been.

        Raises:
            WireError: the state cannot be encoded.
            RecordingError: it cannot be kept.
        """
        archive = self._archive
        taken = archive.take(state) if encoded is None else archive.adopt(state, encoded)
        number = _fit(number)
        gap, kind = None, ORDINARY
        if self._begun:
            self._end_batch()
            self.position += 1
            restarted = incarnation != self._incarnation
            missed = number + 1 if restarted else max(number - self._number, 0)
            gap = Gap(self.position, restarted, missed)
            kind = EventKind.RESYNC | EventKind.RESTART if restarted else EventKind.RESYNC
        self._begun, self._incarnation, self._number = True, incarnation, number
        mark = self._mark(state, kind)
        self._noted(mark)
        self._cut(taken, mark, gap)

    def _mark(self, state: EngineState, kind: EventKind) -> IndexEntry:
        return IndexEntry(self._number, state.time, _fit(state.step), kind)

    def _cut_if_possible(self, state: EngineState) -> None:
        self._weight = 0
        # A state too odd to encode is reached by applying events from further back.
        with contextlib.suppress(WireError):
            self._cut(self._archive.take(state), self._mark(state, ORDINARY), None)

    def _cut(self, taken: EncodedKeyframe, mark: IndexEntry, gap: Gap | None) -> None:
        self._end_batch()
        for start in range(0, len(taken.ended), _ENDED_AT_ONCE):
            entries = taken.ended[start : start + _ENDED_AT_ONCE]
            self._store_ended(taken.first_ended + start, entries)
        self._store_keyframe(SegmentStart(self.position, mark, taken, gap, self._incarnation))
        self._weight = 0
        self._keyframe_size = sum(map(len, taken.keyframe))

    def _end_batch(self) -> None:
        batch, self._batch = self._batch, None
        if batch is not None:
            self._store_batch(batch)

    @abstractmethod
    def _noted(self, mark: IndexEntry) -> None:
        """A moment has come, at `position`."""

    @abstractmethod
    def _store_batch(self, batch: EventBatch) -> None:
        """Keep a batch that is complete."""

    @abstractmethod
    def _store_ended(self, first: int, entries: list[FinishedRequest]) -> None:
        """Keep finished requests, numbered from `first` on, for keyframes to name."""

    @abstractmethod
    def _store_keyframe(self, cut: SegmentStart) -> None:
        """Keep a keyframe; what comes after it starts from it."""


def _fit(value: int) -> int:
    """A number from the network as one that a column of 8-byte integers takes."""
    return max(-(2**63), min(value, 2**63 - 1))
