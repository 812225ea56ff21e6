"""Recorded time in memory: bounded, compressed, readable while it grows.

Complete batches and keyframes are compressed with zstd. When a limit is reached, the oldest segment
is dropped.
"""

from __future__ import annotations

import zstandard

from seqtop.history.event_index import IndexEntry
from seqtop.history.keyframe import EncodedKeyframe, FinishedRequest, encode_finished
from seqtop.history.segments import EventArrays, Gap, SegmentBuilder
from seqtop.history.timeline import (
    CompressedBatch,
    CompressedData,
    CompressedFinished,
    Segment,
    Timeline,
    split_payloads,
)
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.wire.messages import Event

DEFAULT_MAX_BYTES = 128_000_000
DEFAULT_MAX_EVENTS = 1_000_000

_LEVEL = 1
"""Compression level, a low one because the session's thread compresses; two more save 6 %."""

_EVENT_BYTES = 50
"""Bytes of an event in the index and in the sizes of its batch, as arrays that grow have them."""
_PIECE_BYTES = 250
"""Bytes of the objects that describe a compressed piece, in addition to its data."""


class MemoryStore(Timeline):
    """A timeline in memory.

    One thread appends, any thread may read.

    Args:
        max_bytes: Maximum number of bytes of all that is kept. The newest segment is stored even
            if it is larger.
        max_events: Maximum number of events.
    """

    def __init__(
        self, *, max_bytes: int = DEFAULT_MAX_BYTES, max_events: int = DEFAULT_MAX_EVENTS
    ) -> None:
        super().__init__()
        self.max_bytes = max_bytes
        """The limit on `num_bytes`; a lower one takes effect with the next segment."""
        self._builder = SegmentBuilder(self)
        self._num_stored_bytes = 0
        self._max_events = max_events
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()
        self._newest_finished: dict[int, FinishedRequest] = {}
        """The finished requests that the newest keyframe names: the session's own objects, which
        states that are read from this store share."""

    @property
    def num_bytes(self) -> int:
        """The bytes of all that is kept: compressed pieces, index, and the newest events."""
        newest = len(self._builder.batch_payloads)
        return self._num_stored_bytes + len(self.index) * _EVENT_BYTES + newest

    def record(self, change: StateChange) -> None:
        """Records a change of a session's state, as `SegmentBuilder.record` does.

        `end_segment` comes next, without the session's lock.
        """
        with self.lock:
            self._builder.record(change)

    def append(self, number: int, payload: bytes, event: Event, state: EngineState) -> None:
        """Adds an event, as `SegmentBuilder.append` does, and ends the segment if it is time."""
        with self.lock:
            self._builder.append(number, payload, event, state)
        self.end_segment(state)

    def end_segment(self, state: EngineState) -> None:
        """Begins a new segment if it is time, as `SegmentBuilder.end_segment` does.

        Others can read the store meanwhile.
        """
        self._builder.end_segment(state, self.lock)

    def restore(self, incarnation: str, number: int, state: EngineState) -> None:
        """Adds a snapshot, as `SegmentBuilder.restore` does."""
        with self.lock:
            self._builder.restore(incarnation, number, state)

    # The interface of a `SegmentSink`, for the builder.

    def compress(self, data: bytes | bytearray) -> bytes:
        """Compresses data as a zstd frame."""
        # `ZstdCompressor.compress` would return bytes that still occupy memory for the worst case.
        stream = self._compressor.compressobj(size=len(data))
        return stream.compress(data) + stream.flush()

    def store_entry(self, entry: IndexEntry) -> None:
        """Stores the index entry of the next position."""
        self.index.append(*entry)

    def store_batch(self, batch: EventArrays, payloads: bytearray) -> None:
        """Stores a complete batch and its joined payloads."""
        stored = CompressedBatch(batch.position, batch.sizes, self._store(self.compress(payloads)))
        self._segments[-1].batches.append(stored)

    def store_finished(self, first: int, requests: list[FinishedRequest]) -> None:
        """Stores finished requests, numbered from `first`."""
        self._newest_finished.update(enumerate(requests, first))
        data = self._store(self.compress(encode_finished(requests)))
        self._finished.append(CompressedFinished(first, len(requests), data))

    def store_keyframe(
        self, position: int, keyframe: EncodedKeyframe, entry: IndexEntry, gap: Gap | None
    ) -> None:
        """Stores a keyframe; a new segment begins with it."""
        lowest = keyframe.lowest_finished
        for number in [number for number in self._newest_finished if number < lowest]:
            del self._newest_finished[number]
        if gap is not None:
            self.gaps.append(gap)
        self._segments.append(Segment(position, self._store(keyframe.data), lowest))
        while len(self._segments) > 1 and self._is_full():
            self._drop_segment()

    def _is_full(self) -> bool:
        return self.num_bytes > self.max_bytes or len(self.index) > self._max_events

    def _drop_segment(self) -> None:
        oldest = self._segments.pop(0)
        dropped = [oldest.keyframe, *(batch.data for batch in oldest.batches)]
        lowest = min(segment.lowest_finished for segment in self._segments)
        while self._finished and self._finished[0].first + self._finished[0].count <= lowest:
            dropped.append(self._finished.pop(0).data)
        self._num_stored_bytes -= sum(data.size + _PIECE_BYTES for data in dropped)
        self.index.drop_before(self._segments[0].position)
        self.gaps = [gap for gap in self.gaps if gap.position >= self.first]

    def _payloads(self, start: int, stop: int) -> list[bytes | None]:
        with self.lock:
            batch = self._builder.batch
            if batch is None or start < batch.position:
                return super()._payloads(start, stop)
            first, last = start - batch.position, stop - batch.position
            return split_payloads(self._builder.batch_payloads, batch.sizes, first, last)

    def _finished_request(self, number: int) -> FinishedRequest:
        return self._newest_finished.get(number) or super()._finished_request(number)

    def _store(self, compressed: bytes) -> CompressedData:
        self._num_stored_bytes += len(compressed) + _PIECE_BYTES
        return CompressedData(compressed, len(compressed))

    def _read(self, data: CompressedData) -> bytes:
        return self._decompressor.decompress(data.location)
