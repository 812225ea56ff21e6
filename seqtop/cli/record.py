"""`seqtop record`: records a running engine to a file."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from typing import TYPE_CHECKING

from seqtop.argparse_ext import positive
from seqtop.cli.messages import fail, warn
from seqtop.cli.options import Commands, add_curve_keys, add_endpoint, add_timeout, curve_keys
from seqtop.sanitize import safe_line

if TYPE_CHECKING:
    import threading

    from seqtop.connection import Connection
    from seqtop.history.recorder import Recorder
    from seqtop.session import Session

_STATUS_SECONDS = 0.5
_SILENCE_SECONDS = 2.0
"""Time without a message, two heartbeats, after which the command warns about the engine."""
_ERASE_LINE = "\r\x1b[K"


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    record = commands.add_parser(
        "record",
        help="record a running engine",
        description="Record a running engine to a file that only you can read, until Ctrl-C. The"
        " file contains prompts and outputs unless --redact is given.",
        epilog="example: seqtop record tcp://127.0.0.1:5557 -o run.seqtop --duration 60",
    )
    add_endpoint(record)
    record.add_argument("-o", "--output", required=True, metavar="FILE", help="the file to write")
    record.add_argument(
        "--redact", action="store_true", help="leave out prompts, outputs and token ids"
    )
    record.add_argument("--force", action="store_true", help="replace the file if it exists")
    record.add_argument("--duration", type=positive, metavar="SECONDS", help="stop after this time")
    add_timeout(record)
    add_curve_keys(record)
    record.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    from seqtop.history import FileWriter, RecordingError
    from seqtop.history.memory_store import MemoryStore
    from seqtop.history.recorder import Recorder
    from seqtop.session import Session
    from seqtop.signals import until_signalled
    from seqtop.state import DEFAULT_MAX_FINISHED

    session = Session(
        options.endpoint,
        max_finished=DEFAULT_MAX_FINISHED,
        history=MemoryStore(max_bytes=0),  # the file is the history
        keys=curve_keys(options),
        redact=options.redact,
    )
    with session:
        session.await_engine(options.timeout)
        try:
            recorder = Recorder(FileWriter(options.output, overwrite=options.force))
        except RecordingError as error:
            exists = isinstance(error.__cause__, FileExistsError)
            return fail(f"{error}; --force replaces it" if exists else str(error))
        session.add_listener(recorder.record)
        started = time.monotonic()
        try:
            with until_signalled() as ended:
                _wait(session, recorder, options.output, ended, options.duration)
            warning = _describe_silence(session.connection, recorder.silence)
        finally:
            session.remove_listener(recorder.record)
            recorder.close()
    if recorder.error is not None:
        return fail(recorder.error)
    print(f"{safe_line(options.output)}: {_figures(recorder, time.monotonic() - started)}")
    if warning is not None:
        warn(warning)
    return 0


def _wait(
    session: Session,
    recorder: Recorder,
    path: str,
    ended: threading.Event,
    duration: float | None,
) -> None:
    """Shows the progress until the recording is to end, after `duration` seconds at the latest."""
    shows_progress = sys.stderr.isatty()
    if not shows_progress:
        warn(f"recording {session.connection.endpoint} to {path}")
    started = time.monotonic()
    end = math.inf if duration is None else started + duration
    while recorder.error is None and (left := end - time.monotonic()) > 0:
        if ended.wait(min(left, _STATUS_SECONDS)):
            break
        if shows_progress:
            figures = _figures(recorder, time.monotonic() - started)
            state = session.connection.state.value
            line = f"recording to {safe_line(path)}: {figures}, {state}; Ctrl-C stops it"
            _show_progress(line[: shutil.get_terminal_size().columns - 1])
    if shows_progress:
        _show_progress("")


def _describe_silence(connection: Connection, seconds: float) -> str | None:
    """Returns a warning if the last message was received `seconds` ago and that is too long."""
    from seqtop.connection import ConnectionState

    if connection.state is ConnectionState.LIVE and seconds < _SILENCE_SECONDS:
        return None
    is_unknown = connection.state in (ConnectionState.LIVE, ConnectionState.LOST)
    reason = "; is the engine still running there?" if is_unknown else f": {connection.detail}"
    return f"no message from {connection.endpoint} for {seconds:,.1f} s{reason}"


def _show_progress(line: str) -> None:
    sys.stderr.write(_ERASE_LINE + line)
    sys.stderr.flush()


def _figures(recorder: Recorder, seconds: float) -> str:
    return (
        f"{seconds:,.0f} s, {recorder.num_messages:,} messages, {recorder.num_steps:,} steps,"
        f" {recorder.num_bytes:,} bytes, {recorder.num_gaps:,} gaps"
    )
