"""Drivers: processes that replay workloads with the scheduler of one engine.

A driver belongs to the engine's package, which the inspector never imports. It reads requests as
lines of JSON from its standard input, and writes as many results. Another Python, with another
version of the engine, may run it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Protocol

import msgspec

from seqtop.history.file_store import FileStore
from seqtop.history.file_writer import FileWriter
from seqtop.history.timeline import RecordingError
from seqtop.whatif.replay import (
    Clock,
    RecordingSink,
    Replay,
    ReplayOptions,
    ReplayResult,
    Scheduler,
)
from seqtop.whatif.workload import Workload, WorkloadError
from seqtop.wire.errors import WireError
from seqtop.wire.messages import EngineInfo

DRIVERS = {
    "engine_stub": "engine_stub.entrypoints.whatif",
    "vLLM": "seqtop.adapters.vllm.whatif",
}
"""The modules of drivers, by the first word of `EngineInfo.engine`."""


class DriverError(Exception):
    """A driver cannot be started, or has failed; the message is one sentence for the user."""


def driver_of(info: EngineInfo) -> str:
    """Returns the module of the driver for an engine.

    Raises:
        DriverError: There is none.
    """
    engine = info.engine.partition(" ")[0]
    if engine not in DRIVERS:
        raise DriverError(f"the scheduler of {info.engine} cannot be run again yet")
    return DRIVERS[engine]


class ReplayRequest(msgspec.Struct):
    """A request to a driver."""

    recording: str
    """The path of the recording."""
    output: str
    """The path of the prediction."""
    options: ReplayOptions
    overwrite: bool = False
    """True if the file at `output` is to be replaced."""


class MakeScheduler(Protocol):
    """Makes a scheduler."""

    def __call__(
        self,
        workload: Workload,
        options: ReplayOptions,
        replay: Replay,
        clock: Clock,
        sink: RecordingSink,
        name: str,
    ) -> Scheduler:
        """Makes a scheduler for a workload. Raises ValueError or OSError if it cannot."""


def serve(make_scheduler: MakeScheduler) -> int:
    """Serves the requests on standard input; returns the exit status of the process."""
    workloads: dict[str, Workload] = {}
    # What the engine prints must not be taken for a result.
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=ReplayRequest)
        try:
            if request.recording not in workloads:
                with FileStore(request.recording) as recording:
                    workloads[request.recording] = Workload(recording)
            result = _replay(workloads[request.recording], request, make_scheduler)
        except (WorkloadError, RecordingError, WireError, ValueError, OSError) as error:
            result = ReplayResult(error=str(error))
        results.write(msgspec.json.encode(result) + b"\n")
        results.flush()
    return 0


def _replay(
    workload: Workload, request: ReplayRequest, make_scheduler: MakeScheduler
) -> ReplayResult:
    clock = Clock()
    replay = Replay(workload, request.options, clock)
    with FileWriter(request.output, overwrite=request.overwrite) as writer:
        scheduler = make_scheduler(
            workload,
            request.options,
            replay,
            clock,
            RecordingSink(writer),
            Path(request.recording).name,
        )
        return replay.run(scheduler)


def run_driver(
    module: str, requests: Iterable[ReplayRequest], *, python: str = sys.executable
) -> Iterator[ReplayResult]:
    """Runs a driver, and yields the result of each request as soon as it is there.

    Args:
        module: The module of the driver.
        requests: The requests, in order.
        python: The Python that runs it.

    Raises:
        DriverError: The driver cannot be started, or ends before its last result.
    """
    with ExitStack() as stack:
        errors = stack.enter_context(tempfile.TemporaryFile())  # a pipe that nobody reads may fill
        try:
            process = stack.enter_context(
                subprocess.Popen(
                    [python, "-m", module],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
            )
        except OSError as error:
            raise DriverError(f"{python} cannot be started: {error.strerror}") from error
        stack.callback(process.kill)
        assert process.stdin is not None
        assert process.stdout is not None
        for request in requests:
            try:
                process.stdin.write(msgspec.json.encode(request) + b"\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = b""
            if not line:
                raise DriverError(_failure(process, module, errors))
            yield msgspec.json.decode(line, type=ReplayResult)


def _failure(process: subprocess.Popen[bytes], module: str, errors: IO[bytes]) -> str:
    """Returns a sentence with the last line that a process wrote to its standard error."""
    process.communicate()
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines() or ["it wrote nothing"]
    return f"{module} has failed: {lines[-1]}"
