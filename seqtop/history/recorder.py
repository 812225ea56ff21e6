"""Records a session to a file without blocking the session on a failing disk."""

from __future__ import annotations

import threading
import time

from seqtop.history.file_writer import FileWriter
from seqtop.history.timeline import RecordingError
from seqtop.state.listener import StateChange
from seqtop.wire.errors import WireError

FLUSH_SECONDS = 1.0
"""Longest time that recorded events stay out of the file."""


class Recorder:
    """Records what a session sees, from the first call of `record` until `close`.

    A full disk must not end the session: the recording ends, and `error` says why.
    """

    def __init__(self, writer: FileWriter) -> None:
        self.error: str | None = None
        """The reason why the recording ended early, in one sentence."""
        self.num_messages = 0
        self._last_change = time.monotonic()
        self._writer = writer
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._flush_regularly, name="seqtop-recorder", daemon=True
        )
        self._thread.start()

    @property
    def num_steps(self) -> int:
        return self._writer.num_steps

    @property
    def num_gaps(self) -> int:
        return self._writer.num_gaps

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return self._writer.num_bytes

    @property
    def silence(self) -> float:
        """Seconds since the last message of the engine."""
        return time.monotonic() - self._last_change

    def record(self, change: StateChange) -> None:
        """Records a change of the session's state; a `Listener`."""
        self._last_change = time.monotonic()
        with self._lock:
            if self.error is None:
                try:
                    self._writer.record(change)
                    self.num_messages += change.event is not None
                except (RecordingError, WireError) as error:
                    self.error = str(error)

    def close(self) -> None:
        """Writes what is left. Afterwards the file is complete, or `error` says why not."""
        self._closing.set()
        self._thread.join()
        with self._lock:
            try:
                self._writer.close()
            except RecordingError as error:
                self.error = self.error or str(error)

    def _flush_regularly(self) -> None:
        while not self._closing.wait(FLUSH_SECONDS):
            with self._lock:
                if self.error is None:
                    try:
                        self._writer.flush()
                    except RecordingError as error:
                        self.error = str(error)
