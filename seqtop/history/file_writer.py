"""Writes recordings, frame by frame: an interrupted file is readable up to its last frame."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import zstandard

from seqtop.history import file_format
from seqtop.history.event_index import EventKind, IndexEntry
from seqtop.history.file_format import (
    AnyHeader,
    EventsHeader,
    FinishedHeader,
    FrameLocation,
    KeyframeHeader,
)
from seqtop.history.keyframe import EncodedKeyframe, FinishedRequest, encode_finished
from seqtop.history.segments import EventArrays, Gap, SegmentBuilder
from seqtop.history.timeline import RecordingError
from seqtop.process import files
from seqtop.state import EngineState
from seqtop.state.listener import StateChange
from seqtop.wire.messages import Event

_NO_LOCK: Final = nullcontext()


class FileWriter:
    """A new recording that only its owner may read; a context manager closes it.

    Not safe to use from several threads at once.

    Args:
        path: Path of the recording.
        overwrite: Replace an existing file.

    Raises:
        RecordingError: The file exists or cannot be created.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.num_bytes = 0
        """Number of bytes written."""
        self.num_steps = 0
        """Number of recorded steps."""
        self.num_gaps = 0
        self.num_restored = 0
        """Number of times that the file was removed or moved away, and written again."""
        self._builder = SegmentBuilder(self)
        self._last_step: int | None = None
        self._frames: list[FrameLocation] = []
        self._compressor = zstandard.ZstdCompressor(write_checksum=True)
        self._file: int | None = _create(self.path, overwrite=overwrite)
        self._write(file_format.FILE_HEADER)

    def record(self, change: StateChange) -> None:
        """Records a change of a session's state, as `SegmentBuilder.record` does."""
        self._builder.record(change)
        self._builder.end_segment(change.state, _NO_LOCK)

    def append(self, number: int, payload: bytes, event: Event, state: EngineState) -> None:
        """Adds an event, as `SegmentBuilder.append` does."""
        self._builder.append(number, payload, event, state)
        self._builder.end_segment(state, _NO_LOCK)

    def restore(self, incarnation: str, number: int, state: EngineState) -> None:
        """Adds a snapshot, as `SegmentBuilder.restore` does."""
        self._builder.restore(incarnation, number, state)

    def flush(self) -> None:
        """Writes all events added so far. A file that was removed is written again at its path.

        Raises:
            RecordingError: They cannot be written; the recording ends before them. Or another file
                has replaced this one.
        """
        self._builder.end_batch()
        if self._file is not None:
            self._stay_at_path(self._file)

    def close(self) -> None:
        """Writes the remaining events and the index, and closes the file.

        Raises:
            RecordingError: They cannot be written; what was written before is readable.
        """
        if self._file is None:
            return
        try:
            self.flush()
            self._write(file_format.pack_index(self._frames, self.num_bytes))
            os.fsync(self._file)
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._release()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The interface of a `SegmentSink`, for the builder.

    def compress(self, data: bytes | bytearray) -> bytes:
        """Compresses the content of a frame."""
        return file_format.compress(data, self._compressor)

    def store_entry(self, entry: IndexEntry) -> None:
        """Counts the steps: a file has its index at the end."""
        follows = self._last_step is not None and not entry.kind & EventKind.RESYNC
        if follows and entry.step != self._last_step:
            self.num_steps += 1
        self._last_step = entry.step

    def store_batch(self, batch: EventArrays, payloads: bytearray) -> None:
        """Stores a complete batch and its joined payloads."""
        header = EventsHeader(size=0, length=len(payloads), arrays=batch)
        self._write_frame(header, self.compress(payloads))

    def store_finished(self, first: int, requests: list[FinishedRequest]) -> None:
        """Stores finished requests, numbered from `first`."""
        data = encode_finished(requests)
        header = FinishedHeader(size=0, length=len(data), first=first, count=len(requests))
        self._write_frame(header, self.compress(data))

    def store_keyframe(
        self, position: int, keyframe: EncodedKeyframe, entry: IndexEntry, gap: Gap | None
    ) -> None:
        """Stores a keyframe; a new segment begins with it."""
        self.num_gaps += gap is not None
        header = KeyframeHeader(
            size=0,
            length=keyframe.length,
            position=position,
            number=entry.number,
            time=entry.time,
            step=entry.step,
            gap=None if gap is None else (gap.restarted, gap.num_missed),
        )
        self._write_frame(header, keyframe.data)

    def _write_frame(self, header: AnyHeader, data: bytes) -> None:
        header.size = len(data)
        try:
            file_format.check_size(header)
        except ValueError as error:
            self._release()
            raise RecordingError(
                f"{self.path} ends here: a frame of {header.length:,} bytes is too large for it"
            ) from error
        packed = file_format.pack_header(header)
        self._frames.append(FrameLocation(self.num_bytes + len(packed), header))
        self._write(packed + data)

    def _write(self, data: bytes) -> None:
        if self._file is None:
            raise RecordingError(f"{self.path} is closed")
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            # Nothing may follow an incomplete frame: readers stop there.
            self._release()
            raise self._failure(error) from error
        self.num_bytes += len(data)

    def _stay_at_path(self, file: int) -> None:
        own = os.fstat(file)
        try:
            found = self.path.lstat()
        except OSError:
            self._write_again(file)
            return
        if (found.st_dev, found.st_ino) != (own.st_dev, own.st_ino):
            self._release()
            raise RecordingError(
                f"{self.path} was replaced by another file while it was recorded; the recording"
                " ends"
            )

    def _write_again(self, file: int) -> None:
        """Copies the recording to its path, from where it was removed, and continues there."""
        self._file = None
        try:
            with (
                open(file, "rb") as content,
                files.writing(self.path, overwrite=False) as copy,
            ):
                content.seek(0)
                shutil.copyfileobj(content, copy)
                self._file = os.dup(copy.fileno())
        except OSError as error:
            self._release()
            raise RecordingError(
                f"{self.path} was removed while it was recorded, and cannot be written again:"
                f" {error.strerror}"
            ) from error
        self.num_restored += 1

    def _failure(self, error: OSError) -> RecordingError:
        return RecordingError(f"{self.path} cannot be written: {error.strerror}")

    def _release(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None


def _create(path: Path, *, overwrite: bool) -> int:
    try:
        return files.create(path, overwrite=overwrite)
    except FileExistsError as error:
        raise RecordingError(f"{path} exists already") from error
    except OSError as error:
        raise RecordingError(f"{path} cannot be created: {error.strerror}") from error
