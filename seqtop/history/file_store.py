"""Reads a recording lazily: captions when it is opened, data when a moment is asked for.

Files are untrusted: every size is checked before anything of that size is allocated, and what is
damaged is reported, never raised as anything but `RecordingError`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from seqtop.history import file_format as layout
from seqtop.history.event_index import ORDINARY, EventKind
from seqtop.history.file_format import (
    AnyCaption,
    EndedCaption,
    EventsCaption,
    KeyframeCaption,
    Located,
)
from seqtop.history.segments import Gap
from seqtop.history.timeline import (
    CompressedData,
    RecordingError,
    Segment,
    StoredBatch,
    StoredEnded,
    Timeline,
)
from seqtop.state import EngineState

MAX_STATE_BYTES = 2 * layout.MAX_KEYFRAME_BYTES
"""Bytes, decompressed, that may be read to arrive at one state."""

_ONE_EVENT = EventKind.FINISH | EventKind.PREEMPTION | EventKind.SWAP
"""What an event can be; the rest are keyframes' to say."""


class FileStore(Timeline):
    """The recording at `path`, open until `close`; a context manager closes it.

    A file that was cut anywhere opens with what is whole in it, and says so in `damage`. A file
    that is still being written opens with what there is by now.

    Raises:
        RecordingError: there is no such file, or it is no recording, or of another version.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = Path(path)
        self.num_lost_bytes = 0
        """Bytes at the end of the file that cannot be read."""
        self.damage: str | None = None
        """One sentence on what is lost or was rebuilt, if anything."""
        self._left: int | None = None
        """How much more may be read on the way to the state being built."""
        self._num_ended = 0
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
        """Nothing can be read afterwards."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    @property
    def is_empty(self) -> bool:
        """Whether there is not one moment to read in it; `damage` says why."""
        return not self._segments

    def require(self) -> None:
        """Raises `RecordingError` if there is nothing to read in it."""
        if self.is_empty:
            raise RecordingError(self.damage)

    def unreadable(self) -> Iterator[str]:
        """A sentence for each keyframe and each lot of finished requests that cannot be read.

        `events` finds out of itself what cannot be read of the rest.
        """
        keyframes = [segment.keyframe for segment in self._segments]
        for stored in (*keyframes, *(ended.stored for ended in self._ended)):
            try:
                self._read(stored)
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
        head = self._fetch(0, len(layout.HEADER))
        if not any(header.startswith(head) for header in layout.READABLE):
            if head.startswith(layout.SIGNATURE):
                version = int.from_bytes(head[len(layout.SIGNATURE) :], "little")
                raise RecordingError(
                    f"{self.path} is a recording of version {version};"
                    f" this seqtop reads versions {layout.OLDEST_VERSION} to {layout.VERSION}"
                )
            raise RecordingError(f"{self.path} is not a seqtop recording")
        try:
            self._admit_all(self._index(size), size)
        except ValueError:
            self._rebuild(size)
        if not self._segments:
            self.damage = self._nothing(size)

    def _nothing(self, size: int) -> str:
        """Why there is not one moment in it."""
        if not size:
            return f"{self.path} is empty: there is nothing to read in it"
        if self.damage is None:
            return f"{self.path} has nothing in it: it was closed before anything was recorded"
        lost = (
            f", and its last {self.num_lost_bytes:,} bytes are lost" if self.num_lost_bytes else ""
        )
        return f"nothing in {self.path} can be read: it was cut short or is damaged{lost}"

    def _index(self, size: int) -> list[Located]:
        """The index at the end of the file; raises `ValueError` where there is none."""
        trailer_at = size - layout.TRAILER.size
        if trailer_at < len(layout.HEADER):
            raise ValueError("too short for an index")
        offset, checksum, signature = layout.TRAILER.unpack(
            self._fetch(trailer_at, layout.TRAILER.size)
        )
        start = offset + layout.SKIPPABLE.size
        if signature != layout.TRAILER_SIGNATURE or start > trailer_at:
            raise ValueError("no index")
        content = self._fetch(start, trailer_at - start)
        # An index only repeats captions that are in the file uncompressed.
        return layout.unpack_index(content, checksum, max_length=size)

    def _rebuild(self, size: int) -> None:
        """Go through the file from caption to caption, as far as it is whole."""
        Timeline.__init__(self)
        self._num_ended = 0
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
        """Admit whole frames; return where they end, or the end of the file if all are."""
        offset = min(len(layout.HEADER), size)
        while offset < size:
            head = self._fetch(offset, layout.SKIPPABLE.size)
            if len(head) < layout.SKIPPABLE.size:
                break
            magic, length = layout.SKIPPABLE.unpack(head)
            if magic == layout.INDEX_MAGIC:
                return size
            if magic != layout.CAPTION_MAGIC or length > layout.MAX_FRAME_BYTES:
                break
            start = offset + layout.SKIPPABLE.size
            try:
                caption = layout.unpack_caption(self._fetch(start, length))
                if start + length + caption.size > size:
                    break
                self._admit(start + length, caption)
            except ValueError:
                break
            offset = start + length + caption.size
        return offset

    def _admit_all(self, located: Iterable[Located], size: int) -> None:
        for offset, caption in located:
            if offset + caption.size > size:
                raise ValueError("the index is of another file")
            self._admit(offset, caption)

    def _admit(self, offset: int, caption: AnyCaption) -> None:
        """Take up what a caption tells; raises `ValueError` if it does not follow on the last."""
        layout.check_size(caption)
        stored = CompressedData((offset, caption.length), caption.size)
        match caption:
            case EventsCaption():
                self._admit_events(caption, stored)
            case EndedCaption():
                if caption.first != self._num_ended or not 0 < caption.count <= caption.length:
                    raise ValueError("finished requests are missing")
                self._ended.append(StoredEnded(caption.first, caption.count, stored))
                self._num_ended += caption.count
            case KeyframeCaption():
                self._admit_keyframe(caption, stored)

    def _admit_events(self, caption: EventsCaption, stored: CompressedData) -> None:
        if not self._segments or caption.position != self.last + 1:
            raise ValueError("events are missing")
        batch = layout.batch_of(caption)
        columns = zip(batch.times, batch.steps, batch.kinds, strict=True)
        for number, (time, step, kind) in enumerate(columns, caption.number):
            self.index.append(
                number, time, step, EventKind(kind) & _ONE_EVENT if kind else ORDINARY
            )
        self._segments[-1].batches.append(StoredBatch(batch.position, batch.sizes, stored))

    def _admit_keyframe(self, caption: KeyframeCaption, stored: CompressedData) -> None:
        position, gap = caption.position, caption.gap
        starts = not self._segments
        if position != (0 if starts else self.last + (gap is not None)) or (starts and gap):
            raise ValueError("a keyframe is not where it should be")
        if starts or gap is not None:
            kind = ORDINARY
            if gap is not None:
                self.gaps.append(Gap(position, *gap))
                kind = EventKind.RESYNC | EventKind.RESTART if gap[0] else EventKind.RESYNC
            self.index.append(caption.number, caption.time, caption.step, kind)
        self._segments.append(Segment(position, stored, caption.lowest_ended))

    def _at(self, position: int) -> EngineState:
        self._left = MAX_STATE_BYTES
        try:
            return super()._at(position)
        finally:
            self._left = None

    def _read(self, stored: CompressedData) -> bytes:
        offset, length = stored.place
        if self._left is not None:
            self._left -= length
            if self._left < 0:
                raise RecordingError(f"{self.path}: a state in it is too large to be read")
        try:
            data = layout.decompress(self._fetch(offset, stored.size), max_length=length)
        except ValueError as error:
            raise RecordingError(f"{self.path} is damaged at byte {offset:,}: {error}") from error
        if len(data) != length:
            raise RecordingError(f"{self.path} is damaged at byte {offset:,}: a frame is too short")
        return data

    def _fetch(self, offset: int, size: int) -> bytes:
        """So many bytes of the file from `offset` on, fewer at its end."""
        try:
            return os.pread(self._file, size, offset)
        except OSError as error:
            raise RecordingError(f"{self.path} cannot be read: {error.strerror}") from error


def final_state(path: str | os.PathLike[str]) -> EngineState:
    """The state at the end of the recording at `path`.

    Raises:
        RecordingError: there is no such recording, or its end cannot be read.
    """
    with FileStore(path) as recording:
        return recording.at(recording.last)
