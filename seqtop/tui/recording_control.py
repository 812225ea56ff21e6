"""Writes down what a live source shows while one looks on: one recording at a time."""

import threading
import time
from pathlib import Path
from typing import Protocol, runtime_checkable

from seqtop import format as fmt
from seqtop.history import FileWriter, RecordingError
from seqtop.history.recorder import Recorder
from seqtop.state.listener import Listener


@runtime_checkable
class Recordable(Protocol):
    """A source that tells a listener of everything; `seqtop.session.Session` does."""

    def listen(self, listener: Listener) -> None:
        """Tell `listener` the state as it is, and all that happens from now on."""

    def unlisten(self, listener: Listener) -> None:
        """Tell it nothing more."""


class RecordingControl:
    """Starts and ends recordings of `source`, in files named by the time in `folder`.

    `toggle` and `finish` wait for the disk and for the source: call them on no thread that draws.
    """

    def __init__(self, source: Recordable, folder: Path | None = None) -> None:
        self.path: Path | None = None
        """Of the recording that is being made."""
        self._source = source
        self._folder = folder
        self._recorder: Recorder | None = None
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int | None:
        """What is in the file so far; `None` while nothing is recorded."""
        recorder = self._recorder
        return None if recorder is None else recorder.num_bytes

    @property
    def error(self) -> str | None:
        """Why nothing more is recorded although it should be, in one sentence."""
        recorder = self._recorder
        return None if recorder is None else recorder.error

    def toggle(self) -> str:
        """Start recording, or end it; returns a sentence for the user.

        Raises:
            RecordingError: the file cannot be written.
        """
        with self._lock:
            return self._start() if self._recorder is None else self._finish()

    def finish(self) -> str | None:
        """End the recording, if one is being made; returns a sentence for the user.

        Raises:
            RecordingError: not all of it could be written.
        """
        with self._lock:
            return None if self._recorder is None else self._finish()

    def _start(self) -> str:
        name = time.strftime("seqtop-%Y%m%d-%H%M%S.seqtop")
        path = (self._folder or Path.cwd()) / name
        recorder = Recorder(FileWriter(path))
        self._source.listen(recorder)
        self.path, self._recorder = path, recorder
        return f"Recording to {path}."

    def _finish(self) -> str:
        recorder, self._recorder = self._recorder, None
        path, self.path = self.path, None
        assert recorder is not None, "a recording is being made"
        self._source.unlisten(recorder)
        recorder.close()
        if recorder.error is not None:
            raise RecordingError(recorder.error)
        steps, size = fmt.plural(recorder.num_steps, "step"), fmt.size(recorder.num_bytes)
        return f"Recorded {steps} to {path} ({size})."
