"""Control of recordings from the app."""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from seqtop.history import FileWriter, RecordingError
from seqtop.history.copying import save
from seqtop.history.recorder import Recorder
from seqtop.history.timeline import Timeline
from seqtop.text import format as fmt
from seqtop.tui.source import Engine


class RecordingControl:
    """Starts and ends recordings of an engine, one at a time.

    `toggle` and `finish` wait for the disk and for the engine: do not call them on the event loop.

    Args:
        engine: The engine to record; `None` if the app shows a recording.
        folder: The folder of the files, which are named by the time; by default the working folder.
    """

    def __init__(self, engine: Engine | None, folder: Path | None = None) -> None:
        self.path: Path | None = None
        """Path of the recording that is being made."""
        self._engine = engine
        self._folder = folder
        self._recorder: Recorder | None = None
        self._stop: Callable[[], object] = lambda: None
        """Detaches the recorder from the engine."""
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int | None:
        """Bytes in the file so far; `None` while nothing is recorded."""
        recorder = self._recorder
        return None if recorder is None else recorder.num_bytes

    @property
    def error(self) -> str | None:
        """The reason why the recording ended early, in one sentence."""
        recorder = self._recorder
        return None if recorder is None else recorder.error

    def toggle(self) -> str:
        """Starts recording, or ends it; returns a sentence for the user.

        Raises:
            RecordingError: The file cannot be written, or there is no engine.
        """
        with self._lock:
            return self._start() if self._recorder is None else self._finish()

    @property
    def is_recording(self) -> bool:
        """True while a recording is being made."""
        return self._recorder is not None

    def save_past(self, history: Timeline) -> str:
        """Writes what has been recorded in memory to a file; returns a sentence for the user.

        Raises:
            RecordingError: The file cannot be written.
        """
        writer = save(history, self._new_path())
        steps, size = fmt.plural(writer.num_steps, "step"), fmt.size(writer.num_bytes)
        return f"Saved the past, {steps}, to {writer.path} ({size})."

    def finish(self) -> str | None:
        """Ends the recording, if one is being made; returns a sentence for the user.

        Raises:
            RecordingError: Not all of it could be written.
        """
        with self._lock:
            return None if self._recorder is None else self._finish()

    def _start(self) -> str:
        engine = self._engine
        if engine is None:
            raise RecordingError("this is a recording already")
        path = self._new_path()
        recorder = Recorder(FileWriter(path))
        engine.add_listener(recorder.record)
        self._stop = partial(engine.remove_listener, recorder.record)
        self.path, self._recorder = path, recorder
        return f"Recording to {path}."

    def _new_path(self) -> Path:
        return (self._folder or Path.cwd()) / time.strftime("seqtop-%Y%m%d-%H%M%S.seqtop")

    def _finish(self) -> str:
        recorder, self._recorder = self._recorder, None
        path, self.path = self.path, None
        assert recorder is not None, "a recording is being made"
        self._stop()
        recorder.close()
        if recorder.error is not None:
            raise RecordingError(recorder.error)
        steps, size = fmt.plural(recorder.num_steps, "step"), fmt.size(recorder.num_bytes)
        restored = "; it was removed meanwhile, and written again" * bool(recorder.num_restored)
        return f"Recorded {steps} to {path} ({size}){restored}."
