"""Recording of a session to a file."""

from __future__ import annotations

import threading
import time

from seqtop.history.file_writer import FileWriter
from seqtop.history.timeline import RecordingError
from seqtop.state.listener import StateChange
from seqtop.wire.errors import WireError

FLUSH_SECONDS = 1.0
"""Maximum time in seconds until an event is in the file."""


class Recorder:
    """Records a session, from the first call of `record` until `close`.

    A full disk must not end the session: it ends the recording and sets `error`.

    Args:
        writer: The new recording; `close` closes it.
    """

    def __init__(self, writer: FileWriter) -> None:
        self.error: str | None = None
        """The reason for the end of the recording, in one sentence; `None` while it continues."""
        self.num_messages = 0
        """Number of recorded messages."""
        self._last_message = time.monotonic()
        self._writer = writer
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._flush_regularly, name="seqtop-recorder", daemon=True
        )
        self._thread.start()

    @property
    def num_steps(self) -> int:
        """Number of recorded steps."""
        return self._writer.num_steps

    @property
    def num_gaps(self) -> int:
        """Number of gaps in the recording."""
        return self._writer.num_gaps

    @property
    def num_bytes(self) -> int:
        """Size of the file in bytes."""
        return self._writer.num_bytes

    @property
    def num_restored(self) -> int:
        """Number of times that the file was removed and written again."""
        return self._writer.num_restored

    @property
    def silence(self) -> float:
        """Seconds since the last message."""
        return time.monotonic() - self._last_message

    def record(self, change: StateChange) -> None:
        """Records a change of the session's state; a `Listener`."""
        self._last_message = time.monotonic()
        with self._lock:
            if self.error is None:
                try:
                    self._writer.record(change)
                    self.num_messages += change.event is not None
                except (RecordingError, WireError) as error:
                    self.error = str(error)

    def close(self) -> None:
        """Writes the remaining events; the file is complete afterwards, or `error` is set."""
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
