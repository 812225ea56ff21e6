"""What a viewer has seen, kept in memory: bounded, compressed, and open at any moment.

The newest batch is kept as it came, complete ones and keyframes compressed with zstd. When there
is too much, the oldest segment goes whole.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import zstandard

from seqtop.history.event_index import IndexEntry
from seqtop.history.keyframe import FinishedRequest, encode_ended
from seqtop.history.segments import EventBatch, SegmentBuilder, SegmentStart
from seqtop.history.timeline import (
    CompressedData,
    Segment,
    StoredBatch,
    StoredEnded,
    Timeline,
    payloads,
)
from seqtop.state import EngineState
from seqtop.wire.frames import Buffer
from seqtop.wire.messages import Event

DEFAULT_MAX_BYTES = 256 * 2**20
DEFAULT_MAX_EVENTS = 1_000_000

_LEVEL = 1
"""Of compression: the appending thread pays for it; the next two save 6 %."""

_LARGE_BYTES = 4 * 2**20
"""More takes longer to compress than a frame of the app."""

_INDEX_BYTES = 25
"""What the index takes for each event."""


class MemoryStore(Timeline, SegmentBuilder):
    """A record in memory of at most about `max_bytes` and `max_events`.

    Its newest segment is kept whatever its size. One thread appends, any may look.
    """

    def __init__(
        self, *, max_bytes: int = DEFAULT_MAX_BYTES, max_events: int = DEFAULT_MAX_EVENTS
    ) -> None:
        Timeline.__init__(self)
        SegmentBuilder.__init__(self)
        self.num_bytes = 0
        """Bytes of everything stored, without the index."""
        self._max_bytes = max_bytes
        self._max_events = max_events
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()
        self._living: dict[int, FinishedRequest] = {}
        """Finished requests that the newest keyframe names, as the viewer's own objects."""
        self._uncompressed: dict[int, CompressedData] = {}
        """What threads are compressing, by its identity."""

    def append(self, number: int, payload: bytes, event: Event, state: EngineState) -> None:
        with self.lock:
            super().append(number, payload, event, state)

    def restore(
        self,
        incarnation: str,
        number: int,
        state: EngineState,
        *,
        encoded: Sequence[Buffer] | None = None,
    ) -> None:
        with self.lock:
            super().restore(incarnation, number, state, encoded=encoded)

    def _noted(self, mark: IndexEntry) -> None:
        self.index.append(*mark)

    def _store_batch(self, batch: EventBatch) -> None:
        stored = self._store([bytes(batch.data)])
        self._segments[-1].batches.append(StoredBatch(batch.position, batch.sizes, stored))

    def _store_ended(self, first: int, entries: list[FinishedRequest]) -> None:
        self._living.update(enumerate(entries, first))
        self._ended.append(StoredEnded(first, len(entries), self._store([encode_ended(entries)])))

    def _store_keyframe(self, cut: SegmentStart) -> None:
        lowest = cut.taken.lowest
        for number in [number for number in self._living if number < lowest]:
            del self._living[number]
        if cut.gap is not None:
            self.gaps.append(cut.gap)
        self._segments.append(Segment(cut.position, self._store(cut.taken.keyframe), lowest))
        while len(self._segments) > 1 and self._is_full():
            self._drop_segment()

    def _is_full(self) -> bool:
        num_events = len(self.index)
        num_bytes = self.num_bytes + num_events * _INDEX_BYTES
        return num_bytes > self._max_bytes or num_events > self._max_events

    def _drop_segment(self) -> None:
        oldest = self._segments.pop(0)
        gone = [oldest.keyframe, *(batch.stored for batch in oldest.batches)]
        lowest = min(segment.lowest_ended for segment in self._segments)
        while self._ended and self._ended[0].first + self._ended[0].count <= lowest:
            gone.append(self._ended.pop(0).stored)
        for stored in gone:
            self.num_bytes -= stored.size
            self._uncompressed.pop(id(stored), None)
        self.index.drop_before(self._segments[0].position)
        self.gaps = [gap for gap in self.gaps if gap.position >= self.first]

    def _payloads(self, start: int, stop: int) -> list[bytes | None]:
        with self.lock:
            batch = self._batch
            if batch is None or start < batch.position:
                return super()._payloads(start, stop)
            first, last = start - batch.position, stop - batch.position
            return payloads(batch.data, batch.sizes, first, last)

    def _ended_request(self, number: int) -> FinishedRequest:
        return self._living.get(number) or super()._ended_request(number)

    def _store(self, data: list[Buffer]) -> CompressedData:
        """Keep the bytes of `data`, put together."""
        size = sum(map(len, data))
        if size > _LARGE_BYTES:
            return self._store_large(data, size)
        compressed = _compress(self._compressor, data, size)
        self.num_bytes += len(compressed)
        return CompressedData(compressed, len(compressed))

    def _store_large(self, data: list[Buffer], size: int) -> CompressedData:
        """Keep `data` as it is until a thread has compressed it, for which nobody has to wait."""
        self.num_bytes += size
        stored = CompressedData(data, size)
        self._uncompressed[id(stored)] = stored

        def compress() -> None:
            compressed = _compress(zstandard.ZstdCompressor(level=_LEVEL), data, size)
            with self.lock:
                # What was dropped meanwhile counts no more.
                if self._uncompressed.pop(id(stored), None) is not None:
                    self.num_bytes += len(compressed) - stored.size
                    stored.place, stored.size = compressed, len(compressed)

        threading.Thread(target=compress, name="seqtop-compress", daemon=True).start()
        return stored

    def _read(self, stored: CompressedData) -> bytes:
        place: bytes | list[Buffer] = stored.place
        return b"".join(place) if isinstance(place, list) else self._decompressor.decompress(place)


def _compress(compressor: zstandard.ZstdCompressor, data: list[Buffer], size: int) -> bytes:
    """The `size` bytes of `data` as one frame, which says how many they are."""
    stream = compressor.compressobj(size=size)
    return b"".join([*map(stream.compress, data), stream.flush()])
