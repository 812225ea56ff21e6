"""Records a session: stands between its thread and the disk."""

from __future__ import annotations

import threading
import time

from seqtop.history.file_writer import FileWriter
from seqtop.history.timeline import RecordingError
from seqtop.state import EngineState
from seqtop.wire.errors import WireError
from seqtop.wire.messages import Event

FLUSH_SECONDS = 1.0
"""What was seen is in the file after so long at the latest."""


class Recorder:
    """A `Listener` that records what its session sees, until `close`.

    A disk that is full must not end the session: the recording ends, and `error` says why.
    """

    def __init__(self, writer: FileWriter) -> None:
        self.error: str | None = None
        """One sentence on why nothing more is recorded, if so."""
        self.num_messages = 0
        self._heard_at = time.monotonic()
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
        """Seconds since the engine was heard of last."""
        return time.monotonic() - self._heard_at

    def append(self, number: int, payload: bytes, event: Event, state: EngineState) -> None:
        self._heard_at = time.monotonic()
        with self._lock:
            if self.error is None:
                try:
                    self._writer.append(number, payload, event, state)
                    self.num_messages += 1
                except (RecordingError, WireError) as error:
                    self.error = str(error)

    def restore(self, incarnation: str, number: int, state: EngineState) -> None:
        self._heard_at = time.monotonic()
        with self._lock:
            if self.error is None:
                try:
                    self._writer.restore(incarnation, number, state)
                except (RecordingError, WireError) as error:
                    self.error = str(error)

    def close(self) -> None:
        """Write what is left; returns when the file is complete, or `error` says why not."""
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
