"""The engine or the recording that the tools answer about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from seqtop.history.copying import save
from seqtop.history.file_store import FileStore
from seqtop.history.timeline import Timeline
from seqtop.live.session import Session
from seqtop.transport.connection import ConnectionState
from seqtop.whatif.predict import scratch_folder


class Source(Protocol):
    """An engine or a recording.

    Its methods raise `RecordingError` if what is recorded cannot be read, and `UnreachableError` if
    there is no engine.
    """

    name: str
    """The endpoint of the engine, or the path of the recording."""
    is_live: bool
    """True for an engine."""

    def notes(self) -> list[str]:
        """Returns sentences on what limits the trust in all answers."""
        ...

    def gone(self) -> str | None:
        """Returns a sentence if it is an engine that is not there any more."""
        ...

    def timeline(self) -> AbstractContextManager[Timeline]:
        """Yields what is recorded."""
        ...

    def recording(self) -> AbstractContextManager[str]:
        """Yields the path of a recording of all that is recorded."""
        ...


class RecordedSource:
    """A recording, which is opened anew for each answer.

    Args:
        path: Its path.
    """

    is_live = False

    def __init__(self, path: str) -> None:
        self.name = path

    def notes(self) -> list[str]:
        """Returns sentences on damage, and on a recording that no engine made."""
        with self._open() as recording:
            notes = [recording.damage] if recording.damage else []
            if recording.predicted_from:
                notes.append(f"a PREDICTION from {recording.predicted_from}, no run of an engine")
            return notes

    def gone(self) -> None:
        """Returns `None`: a recording stays."""
        return

    @contextmanager
    def timeline(self) -> Iterator[Timeline]:
        """Yields the recording."""
        with self._open() as recording:
            yield recording

    @contextmanager
    def recording(self) -> Iterator[str]:
        """Yields its path."""
        yield self.name

    @contextmanager
    def _open(self) -> Iterator[FileStore]:
        with FileStore(self.name) as recording:
            recording.require()
            yield recording


class EngineSource:
    """An engine, which may start later than the session with it.

    Args:
        session: The session, which has been started.
        timeout: Seconds to wait for a first state.
    """

    is_live = True

    def __init__(self, session: Session, timeout: float) -> None:
        self.name = session.connection.endpoint
        self._session = session
        self._timeout = timeout

    def notes(self) -> list[str]:
        """Returns a sentence on an engine that is gone, and one on messages that were not read."""
        connection, notes = self._session.connection, []
        if (gone := self.gone()) is not None:
            notes.append(gone)
        if connection.num_errors:
            notes.append(
                f"messages that could not be read: {connection.num_errors:,}, the last of them:"
                f" {connection.last_error}"
            )
        return notes

    @contextmanager
    def timeline(self) -> Iterator[Timeline]:
        """Yields the history of the session, which grows."""
        self._session.await_engine(self._timeout)
        yield self._session.history

    @contextmanager
    def recording(self) -> Iterator[str]:
        """Yields the path of a copy of the history, which is deleted afterwards."""
        with self.timeline() as history, scratch_folder() as folder:
            path = folder / "history.seqtop"
            save(history, path)
            yield str(path)

    def gone(self) -> str | None:
        """Returns a sentence if the engine is not there any more."""
        connection = self._session.connection
        if connection.state not in (ConnectionState.LOST, ConnectionState.STOPPED):
            return None
        detail = f": {connection.detail}" if connection.detail else ""
        return f"the engine at {self.name} is gone{detail}"
