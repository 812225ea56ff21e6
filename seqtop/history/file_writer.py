"""Writes a recording, frame by whole frame, so that whatever ends it leaves the rest readable."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import zstandard

from seqtop.history import file_format as layout
from seqtop.history.event_index import EventKind, IndexEntry
from seqtop.history.file_format import (
    AnyCaption,
    EndedCaption,
    EventsCaption,
    KeyframeCaption,
    Located,
)
from seqtop.history.keyframe import FinishedRequest, encode_ended
from seqtop.history.segments import EventBatch, SegmentBuilder, SegmentStart
from seqtop.history.timeline import RecordingError


class FileWriter(SegmentBuilder):
    """A new recording at `path` that only its owner may read; a context manager closes it.

    `append` and `restore` take down what happens, `flush` writes what is still held back. Not
    safe to use from several threads at once.

    Args:
        overwrite: Replace what is at `path`.

    Raises:
        RecordingError: the file exists already or cannot be created.
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        super().__init__()
        self.path = Path(path)
        self.num_bytes = 0
        """Bytes written."""
        self.num_steps = 0
        """Steps taken down."""
        self.num_gaps = 0
        self._last_step: int | None = None
        self._located: list[Located] = []
        self._compressor = zstandard.ZstdCompressor(write_checksum=True)
        self._file: int | None = _create(self.path, overwrite=overwrite)
        self._write(layout.HEADER)

    def flush(self) -> None:
        """Write everything taken down so far.

        Raises:
            RecordingError: it cannot be written; the recording has ended before it.
        """
        self._end_batch()

    def close(self) -> None:
        """Write what is left and the index, and close the file.

        Raises:
            RecordingError: it cannot be written; what had been written before can be read.
        """
        if self._file is None:
            return
        try:
            self.flush()
            self._write(layout.pack_index(self._located, self.num_bytes))
            os.fsync(self._file)
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._release()

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _noted(self, mark: IndexEntry) -> None:
        skipped = self._last_step is None or mark.kind & EventKind.RESYNC
        if mark.step != self._last_step and not skipped:
            self.num_steps += 1
        self._last_step = mark.step

    def _store_batch(self, batch: EventBatch) -> None:
        caption = EventsCaption(
            size=0,
            length=0,
            position=batch.position,
            number=batch.number,
            **layout.columns(batch),
        )
        self._write_frame(caption, bytes(batch.data))

    def _store_ended(self, first: int, entries: list[FinishedRequest]) -> None:
        caption = EndedCaption(size=0, length=0, first=first, count=len(entries))
        self._write_frame(caption, encode_ended(entries))

    def _store_keyframe(self, cut: SegmentStart) -> None:
        gap = None if cut.gap is None else (cut.gap.restarted, cut.gap.num_missed)
        self.num_gaps += gap is not None
        caption = KeyframeCaption(
            size=0,
            length=0,
            position=cut.position,
            number=cut.mark.number,
            time=cut.mark.time,
            step=cut.mark.step,
            incarnation=cut.incarnation,
            lowest_ended=cut.taken.lowest,
            gap=gap,
        )
        self._write_frame(caption, b"".join(cut.taken.keyframe))

    def _write_frame(self, caption: AnyCaption, content: bytes) -> None:
        data = self._compressor.compress(content)
        caption.size, caption.length = len(data), len(content)
        try:
            layout.check_size(caption)
        except ValueError as error:
            self._release()
            raise RecordingError(
                f"{self.path} ends here: {len(content):,} bytes at once are more than it can hold"
            ) from error
        said = layout.pack_caption(caption)
        self._located.append(Located(self.num_bytes + len(said), caption))
        self._write(said + data)

    def _write(self, data: bytes) -> None:
        if self._file is None:
            raise RecordingError(f"{self.path} is closed")
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            # Nothing may follow a frame that is not whole: it could not be found.
            self._release()
            raise self._failure(error) from error
        self.num_bytes += len(data)

    def _failure(self, error: OSError) -> RecordingError:
        return RecordingError(f"{self.path} cannot be written: {error.strerror}")

    def _release(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None


def _create(path: Path, *, overwrite: bool) -> int:
    # Not blocking, so that a pipe that nobody reads is an error rather than a wait.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        file = os.open(path, flags if overwrite else flags | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise RecordingError(f"{path} exists already") from error
    except OSError as error:
        raise RecordingError(f"{path} cannot be created: {error.strerror}") from error
    try:
        _empty(file)
    except OSError as error:
        os.close(file)
        raise RecordingError(f"{path} cannot be overwritten: {error.strerror}") from error
    return file


def _empty(file: int) -> None:
    """Empty what was there, and let nobody else read it before anything new is in it."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.EINVAL, "it is not a file")
    os.fchmod(file, 0o600)
    os.ftruncate(file, 0)
