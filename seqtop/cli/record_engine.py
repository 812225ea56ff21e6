"""What `seqtop record` does."""

from __future__ import annotations

import math
import os
import shutil
import sys
import threading
import time

from seqtop.connection import Connection, ConnectionState
from seqtop.history.file_writer import FileWriter
from seqtop.history.memory_store import MemoryStore
from seqtop.history.recorder import Recorder
from seqtop.history.timeline import RecordingError
from seqtop.sanitize import safe_line
from seqtop.session import Session
from seqtop.signals import until_signalled
from seqtop.state import DEFAULT_MAX_FINISHED
from seqtop.transport.curve_keys import ViewerKeys

_STATUS_SECONDS = 0.5
_SILENCE_SECONDS = 2.0
"""An engine that was silent for this long at the end, for two heartbeats, is worth a word."""
_ERASE_LINE = "\r\x1b[K"


def record(
    endpoint: str,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    duration: float | None = None,
    timeout: float = 5.0,
    keys: ViewerKeys | None = None,
    redact: bool = False,
) -> None:
    """Record the engine at `endpoint` to `path` for `duration` seconds, or until SIGINT or SIGTERM.

    How it goes stands in one line on stderr, what has become of it on stdout. Whether the engine
    had gone silent by the end is said on stderr, too.

    Args:
        timeout: Seconds to wait for the engine at first.
        keys: For an engine that lets in holders of keys alone.
        redact: Write no texts and no tokens.

    Raises:
        EndpointError: `endpoint` is malformed.
        UnreachableError: no engine answered, or none that can be understood.
        RecordingError: the file cannot be written.
    """
    nothing_kept = MemoryStore(max_bytes=0)  # the file is the history here
    with Session(
        endpoint,
        max_finished=DEFAULT_MAX_FINISHED,
        history=nothing_kept,
        keys=keys,
        redact=redact,
    ) as session:
        session.await_engine(timeout)
        recorder = Recorder(FileWriter(path, overwrite=overwrite))
        session.add_listener(recorder.record)
        started = time.monotonic()
        try:
            with until_signalled() as ended:
                _watch(session, recorder, path, ended, duration)
            remark = _silence(session.link, recorder.silence)
        finally:
            session.remove_listener(recorder.record)
            recorder.close()
    if recorder.error is not None:
        raise RecordingError(recorder.error)
    sys.stdout.write(f"{_named(path)}: {_figures(recorder, time.monotonic() - started)}\n")
    _show(remark)


def _watch(
    session: Session,
    recorder: Recorder,
    path: str | os.PathLike[str],
    ended: threading.Event,
    duration: float | None,
) -> None:
    """Show how it goes until it is to end."""
    shown = sys.stderr.isatty()
    if not shown:
        _show(f"seqtop: recording {session.link.endpoint} to {_named(path)}\n")
    end = math.inf if duration is None else time.monotonic() + duration
    started = time.monotonic()
    while recorder.error is None and (left := end - time.monotonic()) > 0:
        if ended.wait(min(left, _STATUS_SECONDS)):
            break
        if shown:
            figures = _figures(recorder, time.monotonic() - started)
            how = f"{figures}, {session.link.state.value}; Ctrl-C ends it"
            line = f"recording to {_named(path)}: {how}"
            _show(_ERASE_LINE + line[: shutil.get_terminal_size().columns - 1])
    if shown:
        _show(_ERASE_LINE)


def _silence(link: Connection, seconds: float) -> str:
    """What to say of an engine that was silent for so long at the end; nothing if it was not."""
    if link.state is ConnectionState.LIVE and seconds < _SILENCE_SECONDS:
        return ""
    said = f"nothing has come from {link.endpoint} for {seconds:,.1f} s"
    is_unknown = link.state in (ConnectionState.LIVE, ConnectionState.LOST)
    why = "; is the engine still running there?" if is_unknown else f": {link.detail}"
    return f"seqtop: {safe_line(said + why)}\n"


def _named(path: str | os.PathLike[str]) -> str:
    return safe_line(os.fspath(path))


def _show(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _figures(recorder: Recorder, seconds: float) -> str:
    return (
        f"{seconds:,.0f} s, {recorder.num_messages:,} messages, {recorder.num_steps:,} steps,"
        f" {recorder.num_bytes:,} bytes, {recorder.num_gaps:,} gaps"
    )
