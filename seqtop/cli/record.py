"""`seqtop record`: records a running engine to a file."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from seqtop.cli.http_servers import stream_of
from seqtop.cli.messages import fail, warn
from seqtop.cli.options import (
    Commands,
    add_curve_keys,
    add_endpoint,
    add_thresholds,
    add_timeout,
    curve_keys,
    parse_condition,
    parse_duration,
)
from seqtop.process.signals import when_stdin_closes
from seqtop.text.sanitize import safe_line

if TYPE_CHECKING:
    import threading

    from seqtop.history.recorder import Recorder
    from seqtop.live.session import Session
    from seqtop.state.slo import Slo
    from seqtop.transport.connection import Connection

_STATUS_SECONDS = 0.5
_SILENCE_SECONDS = 2.0
"""Time without a message, two heartbeats, after which the command warns about the engine."""
_NICENESS = 10
"""The priority of a flight recorder, so that the engine's processes have a higher one."""
_ERASE_LINE = "\r\x1b[K"


def add_command(commands: Commands) -> None:
    """Adds the command's parser."""
    record = commands.add_parser(
        "record",
        help="record a running engine",
        description="Record a running engine to a file that only you can read, until Ctrl-C. The"
        " file contains prompts and outputs unless --redact is given. With --flight-recorder, the"
        " last minutes stay in memory, and are written when something is wrong.",
        epilog="example: seqtop record tcp://127.0.0.1:5557 -o run.seqtop --duration 60",
    )
    add_endpoint(record)
    target = record.add_mutually_exclusive_group(required=True)
    target.add_argument("-o", "--output", metavar="FILE", help="the file to write")
    target.add_argument(
        "--flight-recorder",
        type=Path,
        metavar="DIR",
        help="write the last minutes to this directory when a check finds something, an objective"
        " is missed, or the engine fails, ends or is silent",
    )
    record.add_argument(
        "--redact",
        action=argparse.BooleanOptionalAction,
        help="leave out prompts, outputs and token ids; --flight-recorder does unless --no-redact"
        " is given",
    )
    record.add_argument("--force", action="store_true", help="replace the file if it exists")
    record.add_argument(
        "--duration",
        type=parse_duration,
        metavar="TIME",
        help="stop after this time, in seconds or such as 2m",
    )
    add_timeout(record)
    flight = record.add_argument_group("flight recorder", "with --flight-recorder")
    add_thresholds(flight)
    flight.add_argument(
        "--slo",
        type=_slo,
        metavar="FIGURE=TIME,…",
        help="objectives for ttft, itl, tpot, queue and e2e, such as ttft=0.5,itl=50ms",
    )
    flight.add_argument(
        "--on",
        action="append",
        default=[],
        type=parse_condition,
        metavar="CONDITION",
        help="write a record when this condition begins to hold, such as 'waiting>20 kv>95%%';"
        " can be given several times",
    )
    flight.add_argument(
        "--run",
        action="append",
        default=[],
        dest="commands",
        metavar="COMMAND",
        help="tell a command of each cause of a record, and of the end of a condition: JSON on its"
        " standard input, and variables SEQTOP_ALERT_*",
    )
    flight.add_argument(
        "--webhook",
        action="append",
        default=[],
        dest="webhooks",
        metavar="URL",
        help="send the same JSON to a web server, by POST",
    )
    flight.add_argument(
        "--stacks",
        metavar="PATH",
        help="the socket at which the engine's process tells the stacks of its threads for the"
        " record; an engine that starts a recorder gives it",
    )
    flight.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="standard input ends with the process that publishes; exit after it",
    )
    add_curve_keys(record)
    record.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command and returns the exit status."""
    if options.flight_recorder is None:
        given = {
            "--slo": options.slo,
            "--threshold": options.threshold,
            "--on": options.on,
            "--run": options.commands,
            "--webhook": options.webhooks,
            "--stacks": options.stacks,
            "--until-stdin-closes": options.until_stdin_closes,
        }
        if wrong := next((name for name, value in given.items() if value), None):
            return fail(f"{wrong} needs --flight-recorder", status=2)
        return _run_recorder(options)
    if options.force:
        return fail("--force needs --output", status=2)
    return _run_flight_recorder(options)


def _run_flight_recorder(options: argparse.Namespace) -> int:
    from seqtop.alerts.notifier import Notifier, TargetError
    from seqtop.alerts.watch import ConditionWatch
    from seqtop.checks.thresholds import from_values
    from seqtop.flight_recorder import recorder
    from seqtop.history import RecordingError
    from seqtop.live.session import Session
    from seqtop.process.signals import until_signalled
    from seqtop.state import condition
    from seqtop.state.slo import Slo

    redact = options.redact is not False
    session = Session(
        options.endpoint,
        max_finished=recorder.MAX_FINISHED,
        history=recorder.recent_history(),
        keys=curve_keys(options),
        redact=redact,
    )
    publisher_ended = None
    if options.until_stdin_closes:
        os.nice(_NICENESS)
        publisher_ended = when_stdin_closes()
    try:
        notifier = Notifier(options.commands, options.webhooks, warn)
    except TargetError as error:
        return fail(str(error), status=2)
    try:
        flight_recorder = recorder.FlightRecorder(
            session,
            options.flight_recorder,
            redact=redact,
            thresholds=from_values(
                {"no_progress_seconds": recorder.NO_PROGRESS_SECONDS} | options.threshold
            ),
            slo=options.slo or Slo(),
            log=warn,
            publisher_ended=publisher_ended,
            watches=[ConditionWatch(condition.parse_condition(source)) for source in options.on],
            send=notifier.send,
            stacks_path=options.stacks,
        )
    except RecordingError as error:
        return fail(f"the flight recorder is off: {error}")
    with notifier, flight_recorder.watching(), session, until_signalled() as ended:
        flight_recorder.await_engine(options.timeout)
        warn(f"the flight recorder of {options.endpoint} writes to {options.flight_recorder}")
        flight_recorder.run(ended, options.duration or math.inf)
    return 0


def _slo(text: str) -> Slo:
    from seqtop.state.slo import SloError, parse

    try:
        return parse(text)
    except SloError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _run_recorder(options: argparse.Namespace) -> int:
    from seqtop.history import FileWriter, RecordingError
    from seqtop.history.memory_store import MemoryStore
    from seqtop.history.recorder import Recorder
    from seqtop.live.session import Session
    from seqtop.process.signals import until_signalled
    from seqtop.state import DEFAULT_MAX_FINISHED

    with ExitStack() as stack:
        session = Session(
            stack.enter_context(stream_of(options.endpoint)),
            max_finished=DEFAULT_MAX_FINISHED,
            history=MemoryStore(max_bytes=0),  # the file is the history
            keys=curve_keys(options),
            redact=bool(options.redact),
        )
        stack.enter_context(session)
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
    started, num_restored = time.monotonic(), 0
    end = math.inf if duration is None else started + duration
    while recorder.error is None and (left := end - time.monotonic()) > 0:
        if ended.wait(min(left, _STATUS_SECONDS)):
            break
        if recorder.num_restored > num_restored:
            num_restored = recorder.num_restored
            warn(f"{path} was removed while it was recorded; it is written again, from its start")
        if shows_progress:
            figures = _figures(recorder, time.monotonic() - started)
            state = session.connection.state.value
            line = f"recording to {safe_line(path)}: {figures}, {state}; Ctrl-C stops it"
            _show_progress(line[: shutil.get_terminal_size().columns - 1])
    if shows_progress:
        _show_progress("")


def _describe_silence(connection: Connection, seconds: float) -> str | None:
    """Returns a warning if the last message was received `seconds` ago and that is too long."""
    from seqtop.transport.connection import ConnectionState

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
