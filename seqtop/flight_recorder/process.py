"""Starts the flight recorder's process from the process that publishes."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from seqtop.process.stacks import StackServer
from seqtop.transport.endpoints import local_endpoint


class FlightRecorderError(Exception):
    """The process cannot be started. The message is one sentence for the log."""


@contextlib.contextmanager
def started(
    endpoint: str, directory: str | Path, options: str = "", stacks: str | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a flight recorder while the context lasts, or until this process ends.

    Its standard input ends with this process, however that ends. It has a session of its own, so
    that a signal to this process's group does not end it. Its errors are lines on this process's
    standard error. The end of the context does not wait for the process.

    Args:
        endpoint: The endpoint at which this process publishes.
        directory: The directory of the records.
        options: Further options of `seqtop record`, as typed in a shell.
        stacks: The path of the `StackServer` of the engine's process; this process by default.

    Raises:
        FlightRecorderError: The process cannot be started.
    """
    with contextlib.ExitStack() as running:
        if stacks is None:
            with contextlib.suppress(OSError):  # records are worth writing without them
                stacks = running.enter_context(contextlib.closing(StackServer())).path
        yield running.enter_context(_started(endpoint, directory, options, stacks or ""))


@contextlib.contextmanager
def _started(
    endpoint: str, directory: str | Path, options: str, stacks: str
) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-P",  # the working directory may contain a `zmq.py`
        *("-m", "seqtop", "record", local_endpoint(endpoint)),
        *("--flight-recorder", str(directory), "--until-stdin-closes", "--timeout", "60"),
        *(("--stacks", stacks) if stacks else ()),
    ]
    try:
        command += shlex.split(options)
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise FlightRecorderError(f"the flight recorder is off: {error}") from error
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
