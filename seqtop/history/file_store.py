"""Reads recordings: the headers when a file is opened, the data on demand.

Files are untrusted: every size is checked before so much memory is allocated, and damage is
reported and raises nothing but `RecordingError`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from seqtop.history import file_format
from seqtop.history.event_index import ORDINARY, EventKind
from seqtop.history.file_format import (
    AnyHeader,
    EventsHeader,
    FinishedHeader,
    FrameLocation,
    KeyframeHeader,
)
from seqtop.history.segments import Gap
from seqtop.history.timeline import (
    CompressedBatch,
    CompressedData,
    CompressedFinished,
    RecordingError,
    Segment,
    Timeline,
)
from seqtop.state import EngineState
from seqtop.wire.message_tag import tag
from seqtop.wire.messages import EngineInfo

MAX_STATE_BYTES = 2 * file_format.MAX_KEYFRAME_BYTES
"""Maximum number of decompressed bytes that are read to build one state."""

_MAX_BEFORE_INFO = 100
"""Messages among which the description of the engine is looked for: it is the first."""
_EVENT_KINDS = int(EventKind.FINISH | EventKind.PREEMPTION | EventKind.SWAP)
"""Kinds of events; the other kinds are those of keyframes."""


class FileStore(Timeline):
    """A recording, open until `close`; a context manager closes it.

    A file that was cut anywhere opens with the frames that are complete; `damage` describes the
    loss. A file that is being written opens with the frames written so far.

    Raises:
        RecordingError: The file does not exist or is not a recording of this version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = Path(path)
        self.num_lost_bytes = 0
        """Number of bytes at the end of the file that cannot be read."""
        self.damage: str | None = None
        """One sentence on the parts that are lost or were rebuilt; `None` for a complete file."""
        self._budget: int | None = None
        """Number of bytes that may still be read for the state that is being built."""
        self._num_finished = 0
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise RecordingError(f"{self.path} cannot be opened: {error.strerror}") from error
        try:
            self._open(os.fstat(self._file))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the file; nothing can be read afterwards."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    @property
    def is_empty(self) -> bool:
        """True if no state can be read; then `damage` is the reason."""
        return not self._segments

    @property
    def predicted_from(self) -> str:
        """The recording from which this one was predicted; empty if none, or if it is unknown."""
        try:
            info = self._restore(self._segments[-1]).info if self._segments else None
            if info is None:
                info = self._announced()
        except RecordingError:
            return ""
        return info.predicted_from if info is not None else ""

    def _announced(self) -> EngineInfo | None:
        """Returns the description of the engine from the first messages."""
        end = min(self.first + _MAX_BEFORE_INFO, self.last)
        for position, payload in self.payloads(self.first, end):
            if payload is not None and tag(payload) == "EngineInfo":
                event = self.peek(position, payload)
                return event if isinstance(event, EngineInfo) else None
        return None

    def require(self) -> None:
        """Checks that at least one state can be read.

        Raises:
            RecordingError: No state can be read.
        """
        if self.is_empty:
            raise RecordingError(self.damage)

    def unreadable(self) -> Iterator[str]:
        """Yields a sentence for each unreadable frame with a keyframe or finished requests.

        Reading `events` finds the other unreadable frames.
        """
        keyframes = [segment.keyframe for segment in self._segments]
        for data in (*keyframes, *(finished.data for finished in self._finished)):
            try:
                self._read(data)
            except RecordingError as error:
                yield str(error)

    def __enter__(self) -> FileStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise RecordingError(f"{self.path} is not a file")
        size = status.st_size
        start = self._fetch(0, len(file_format.FILE_HEADER))
        if not file_format.FILE_HEADER.startswith(start):
            if start.startswith(file_format.SIGNATURE):
                version = int.from_bytes(start[len(file_format.SIGNATURE) :], "little")
                raise RecordingError(
                    f"{self.path} is a recording of version {version};"
                    f" this seqtop reads version {file_format.VERSION}"
                )
            raise RecordingError(
                f"{self.path} is not a seqtop recording; seqtop whatif and advise take traces"
                " (Mooncake, AIPerf, Azure, BurstGPT, ShareGPT, vllm bench serve), seqtop export"
                " --merge those of torch"
            )
        try:
            self._add_indexed(self._read_index(size), size)
        except ValueError:
            self._rebuild(size)
        if not self._segments:
            self.damage = self._describe_empty(size)

    def _describe_empty(self, size: int) -> str:
        if not size:
            return f"{self.path} is empty: there is nothing to read in it"
        if self.damage is None:
            return f"{self.path} has nothing in it: it was closed before anything was recorded"
        lost = (
            f", and its last {self.num_lost_bytes:,} bytes are lost" if self.num_lost_bytes else ""
        )
        return f"nothing in {self.path} can be read: it was cut short or is damaged{lost}"

    def _read_index(self, size: int) -> list[FrameLocation]:
        """Returns the index at the end of the file; raises `ValueError` if there is none."""
        trailer_offset = size - file_format.TRAILER.size
        if trailer_offset < len(file_format.FILE_HEADER):
            raise ValueError("too short for an index")
        offset, checksum, signature = file_format.TRAILER.unpack(
            self._fetch(trailer_offset, file_format.TRAILER.size)
        )
        start = offset + file_format.SKIPPABLE.size
        if signature != file_format.TRAILER_SIGNATURE or start > trailer_offset:
            raise ValueError("no index")
        content = self._fetch(start, trailer_offset - start)
        # The index repeats headers that are in the file uncompressed, so it is not larger.
        return file_format.unpack_index(content, checksum, max_length=size)

    def _rebuild(self, size: int) -> None:
        """Reads the headers from the first on, as far as the file is complete."""
        self._clear()
        self._num_finished = 0
        end = self._walk(size)
        self.num_lost_bytes = size - end
        if self.num_lost_bytes:
            self.damage = (
                f"{self.path} was cut short or is damaged: its last {self.num_lost_bytes:,} bytes"
                " are lost, and its index was rebuilt"
            )
        else:
            self.damage = f"{self.path} was not closed: its index was rebuilt, nothing is lost"

    def _walk(self, size: int) -> int:
        """Adds the complete frames; returns the offset of the first byte that is lost."""
        offset = min(len(file_format.FILE_HEADER), size)
        while offset < size:
            start = self._fetch(offset, file_format.SKIPPABLE.size)
            if len(start) < file_format.SKIPPABLE.size:
                break
            magic, length = file_format.SKIPPABLE.unpack(start)
            if magic == file_format.INDEX_MAGIC:
                return size
            if magic != file_format.HEADER_MAGIC or length > file_format.MAX_FRAME_BYTES:
                break
            header_offset = offset + file_format.SKIPPABLE.size
            data_offset = header_offset + length
            try:
                header = file_format.unpack_header(self._fetch(header_offset, length))
                if data_offset + header.size > size:
                    break
                self._add(data_offset, header)
            except ValueError:
                break
            offset = data_offset + header.size
        return offset

    def _add_indexed(self, frames: Iterable[FrameLocation], size: int) -> None:
        for offset, header in frames:
            if offset + header.size > size:
                raise ValueError("the index does not fit the file")
            self._add(offset, header)

    def _add(self, offset: int, header: AnyHeader) -> None:
        """Adds a frame; raises `ValueError` if it does not follow the one before."""
        file_format.check_size(header)
        data = CompressedData((offset, header.length), header.size)
        match header:
            case EventsHeader():
                self._add_events(header, data)
            case FinishedHeader(first=first, count=count):
                if first != self._num_finished or not 0 < count <= header.length:
                    raise ValueError("finished requests are missing")
                self._finished.append(CompressedFinished(first, count, data))
                self._num_finished += count
            case KeyframeHeader():
                self._add_keyframe(header, data)

    def _add_events(self, header: EventsHeader, data: CompressedData) -> None:
        arrays = header.arrays
        if not self._segments or arrays.position != self.last + 1:
            raise ValueError("events are missing")
        file_format.check_arrays(header)
        rows = zip(arrays.times, arrays.steps, arrays.kinds, strict=True)
        for number, (time, step, kind) in enumerate(rows, arrays.number):
            kind &= _EVENT_KINDS
            self.index.append(number, time, step, EventKind(kind) if kind else ORDINARY)
        batch = CompressedBatch(arrays.position, arrays.sizes, data)
        self._segments[-1].batches.append(batch)

    def _add_keyframe(self, header: KeyframeHeader, data: CompressedData) -> None:
        position, gap = header.position, header.gap
        is_first = not self._segments
        if position != (0 if is_first else self.last + (gap is not None)) or (is_first and gap):
            raise ValueError(f"a keyframe does not continue the events before it: event {position}")
        if is_first or gap is not None:
            kind = ORDINARY
            if gap is not None:
                self.gaps.append(Gap(position, *gap))
                kind = EventKind.RESYNC | EventKind.RESTART if gap[0] else EventKind.RESYNC
            self.index.append(header.number, header.time, header.step, kind)
        self._segments.append(Segment(position, data))

    def _at(self, position: int) -> EngineState:
        self._budget = MAX_STATE_BYTES
        try:
            return super()._at(position)
        finally:
            self._budget = None

    def _read(self, data: CompressedData) -> bytes:
        offset, length = data.location
        if self._budget is not None:
            self._budget -= length
            if self._budget < 0:
                raise RecordingError(f"{self.path}: a state in it is too large to be read")
        try:
            content = file_format.decompress(self._fetch(offset, data.size), max_length=length)
        except ValueError as error:
            raise RecordingError(f"{self.path} is damaged at byte {offset:,}: {error}") from error
        if len(content) != length:
            raise RecordingError(f"{self.path} is damaged at byte {offset:,}: a frame is too short")
        return content

    def _fetch(self, offset: int, size: int) -> bytes:
        """Returns `size` bytes of the file from `offset` on, fewer at its end."""
        try:
            return os.pread(self._file, size, offset)
        except OSError as error:
            raise RecordingError(f"{self.path} cannot be read: {error.strerror}") from error
