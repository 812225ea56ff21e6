"""Drivers: processes that replay workloads with the scheduler of one engine.

A driver belongs to the engine's package, which the inspector never imports. It reads requests as
lines of JSON from its standard input, and answers each with lines of progress, which are numbers,
and one result. Another Python, with another version of the engine, may run it.
"""

from __future__ import annotations

import gc
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Protocol, TypeAlias

import msgspec

from seqtop.history.file_store import FileStore
from seqtop.history.file_writer import FileWriter
from seqtop.history.timeline import RecordingError
from seqtop.process.distribution import install_command
from seqtop.whatif.replay import (
    Clock,
    MessageSink,
    RecordingSink,
    ReplayedScheduler,
    ReplayOptions,
    ReplayResult,
    WorkloadReplay,
)
from seqtop.whatif.trace_options import read_trace
from seqtop.whatif.trace_workload import trace_workload
from seqtop.whatif.traces import TraceError
from seqtop.whatif.workload import Workload, WorkloadError, read_workload
from seqtop.wire.errors import WireError
from seqtop.wire.messages import EngineInfo

DRIVERS = {
    "engine_stub": "engine_stub.entrypoints.whatif",
    "vLLM": "seqtop.adapters.vllm.whatif",
}
"""The modules of drivers, by the first word of `EngineInfo.engine`."""

NUM_PROCESSES = 2
"""The replays that run at the same time."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_MAX_FAILURE = 100
"""Characters of the description of an exception."""
_PROGRESS_SECONDS = 0.1
"""The time between two lines of progress."""


class DriverError(Exception):
    """A driver cannot be started, or has failed; the message is one sentence for the user."""


class DriverFailedError(DriverError):
    """A process of a driver has ended before its result, or was ended since it took too long."""


class TimeUpError(Exception):
    """The time for an answer is up; a function that shows progress raises it to end the replays."""


def driver_of(info: EngineInfo) -> str:
    """Returns the module of the driver for an engine.

    Raises:
        DriverError: There is none.
    """
    engine = info.engine.partition(" ")[0]
    if engine not in DRIVERS:
        raise DriverError(f"the scheduler of {info.engine} cannot be run again yet")
    return DRIVERS[engine]


class TraceInput(msgspec.Struct):
    """A trace as the workload of an engine."""

    info: EngineInfo
    """The engine with its settings."""
    tokenizer: str | None = None
    """A `tokenizer.json` or its folder, for traces with texts."""
    request_rate: float | None = None
    """Requests per second of a trace without times."""
    limit: int | None = None
    """The number of its first requests that are taken; `None` for all."""
    scale_lengths: float = 1.0
    """The factor by which prompts and outputs are longer."""


class ReplayRequest(msgspec.Struct):
    """A request to a driver."""

    source: str
    """The path of the recording or of the trace."""
    output: str | None
    """The path of the prediction; `None` if only its figures are wanted."""
    options: ReplayOptions
    trace: TraceInput | None = None
    """The meaning of a trace; `None` for a recording."""


class MakeScheduler(Protocol):
    """Makes a scheduler."""

    def __call__(
        self,
        workload: Workload,
        options: ReplayOptions,
        replay: WorkloadReplay,
        clock: Clock,
        sink: MessageSink,
        name: str,
    ) -> ReplayedScheduler:
        """Makes a scheduler for a workload. Raises ValueError or OSError if it cannot."""


def serve(make_scheduler: MakeScheduler) -> int:
    """Serves the requests on standard input; returns the exit status of the process."""
    workloads: dict[str, Workload] = {}  # the last one, by its path
    # What the engine prints must not be taken for a result.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line, type=ReplayRequest)
        try:
            if request.source not in workloads:
                workloads.clear()
                workloads[request.source] = _read(request)
                gc.freeze()  # it stays, and to look through it takes a tenth of the time
            workload = workloads[request.source]
            result = _replay(workload, request, make_scheduler, _progress_to(output))
        except (WorkloadError, TraceError, RecordingError, WireError, ValueError, OSError) as error:
            result = ReplayResult(error=str(error))
        output.write(msgspec.json.encode(result) + b"\n")
        output.flush()
    return 0


def _read(request: ReplayRequest) -> Workload:
    """Reads the workload of a request.

    Raises:
        RecordingError, WorkloadError, TraceError, OSError: It cannot be read.
    """
    if (given := request.trace) is not None:
        trace = read_trace(
            request.source,
            tokenizer=given.tokenizer,
            request_rate=given.request_rate,
            limit=given.limit,
            scale_lengths=given.scale_lengths,
        )
        return trace_workload(trace.fitting(given.info.max_model_len), given.info)
    with FileStore(request.source) as recording:
        return read_workload(recording)


def _progress_to(output: IO[bytes]) -> Callable[[float], None]:
    """Returns a function that writes a share, if some time has passed since the last one."""
    next_at = 0.0

    def progress(share: float) -> None:
        nonlocal next_at
        if (now := time.monotonic()) >= next_at:
            next_at = now + _PROGRESS_SECONDS
            output.write(b"%.4f\n" % share)
            output.flush()

    return progress


def _replay(
    workload: Workload,
    request: ReplayRequest,
    make_scheduler: MakeScheduler,
    progress: Callable[[float], None],
) -> ReplayResult:
    clock = Clock()
    with ExitStack() as stack:
        recording = None
        if request.output is not None:
            writer = FileWriter(request.output)
            recording = RecordingSink(stack.enter_context(writer))
        replay = WorkloadReplay(workload, request.options, clock, recording, progress)
        name = Path(request.source).name
        scheduler = make_scheduler(workload, request.options, replay, clock, replay, name)
        try:
            return replay.run(scheduler)
        except (WorkloadError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 (whatever a scheduler fails with)
            return ReplayResult(error=_failure(error), has_failed=True)


def _failure(error: Exception) -> str:
    """Returns a sentence on an exception of a scheduler, and where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    said = f"{type(error).__name__}: {error}".rstrip(": ").split()
    where = f"{Path(frame.filename).name}, line {frame.lineno}"
    return f"the scheduler has failed: {' '.join(said)[:_MAX_FAILURE]} ({where})"


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
    with closing(_Process(python, module)) as process:
        for request in requests:
            yield process.run(request, lambda _: None)


ShowProgress: TypeAlias = Callable[[float, int], object]
"""A function that is called from any thread with the number of complete replays, with those that
run in part, and the number of all. An exception of it ends the replay that it is about."""


def no_progress(_num_complete: float, _total: int) -> None:
    """Shows no progress."""


class Drivers:
    """Processes of one driver, which are started when they are needed; a context manager ends them.

    Args:
        module: The module of the driver.
        python: The Python that runs it.
        progress: Shows the progress.
        timeout: The seconds after which a replay is ended; by default there is no limit.
    """

    def __init__(
        self,
        module: str,
        *,
        python: str = sys.executable,
        progress: ShowProgress = no_progress,
        timeout: float | None = None,
    ) -> None:
        self._module = module
        self._timeout = timeout
        self._python = python
        self._progress = progress
        self._threads = ThreadPoolExecutor(NUM_PROCESSES, thread_name_prefix="seqtop-driver")
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._processes: list[_Process] = []
        self._shares: list[float] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Drivers:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            processes, self._is_closed = self._processes, True
        for process in processes:
            process.close()
        self._threads.shutdown()

    def submit(self, request: ReplayRequest) -> Future[ReplayResult]:
        """Lets a process replay; the result of the future has an error, or raises `DriverError`."""
        with self._lock:
            index = len(self._shares)
            self._shares.append(0.0)
        return self._threads.submit(self._run, index, request)

    def _run(self, index: int, request: ReplayRequest) -> ReplayResult:
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = self._start()
        result = process.run(request, partial(self._show, index), self._timeout)
        self._show(index, 1.0)
        self._idle.put(process)
        return result

    def _show(self, index: int, share: float) -> None:
        with self._lock:
            self._shares[index] = share
            self._progress(sum(self._shares), len(self._shares))

    def _start(self) -> _Process:
        with self._lock:
            if self._is_closed:
                raise DriverError("the replays were ended")
            process = _Process(self._python, self._module)
            self._processes.append(process)
            return process


class _Process:
    """A process of a driver."""

    def __init__(self, python: str, module: str) -> None:
        self._python = python
        self._module = module
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        try:
            self._process = subprocess.Popen(
                [python, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        except OSError as error:
            self._errors.close()
            raise DriverError(f"{python} cannot be started: {error.strerror}") from error

    def run(
        self,
        request: ReplayRequest,
        progress: Callable[[float], object],
        timeout: float | None = None,
    ) -> ReplayResult:
        """Replays, and returns the result.

        Raises:
            DriverFailedError: The process has ended, or was ended after `timeout` seconds.
            DriverError: A package is missing.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._limit(timeout):
            try:
                self._process.stdin.write(msgspec.json.encode(request) + b"\n")
                self._process.stdin.flush()
                while isinstance(reply := _REPLY.decode(self._process.stdout.readline()), float):
                    progress(reply)
            except (OSError, msgspec.DecodeError) as error:
                raise self._failure() from error
        return reply

    @contextmanager
    def _limit(self, timeout: float | None) -> Iterator[None]:
        """Ends the process after some seconds; raises `DriverFailedError` if that was needed."""
        if timeout is None:
            yield
            return
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            self._process.kill()

        timer = threading.Timer(timeout, end)
        timer.start()
        try:
            yield
        except DriverError:
            if not is_late.is_set():
                raise
        finally:
            timer.cancel()
            timer.join()
        if is_late.is_set():
            raise DriverFailedError(f"no result after {timeout:g} seconds")

    def close(self) -> None:
        """Ends the process."""
        with self._process, self._errors:
            self._process.kill()

    def _failure(self) -> DriverError:
        """Returns an error with the last line that the process wrote to its standard error.

        Of a package that is missing, it says what installs it.
        """
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        reason = (text.splitlines() or ["no reason"])[-1]
        if missing := _MISSING.search(reason):
            is_bundled = self._module.startswith("engine_stub.")
            advice = f": {install_command('whatif')}" if is_bundled else f" for {self._python}"
            return DriverError(f"a replay needs {missing[1]}, which is not installed{advice}")
        return DriverFailedError(f"{self._module} has failed: {reason}")


_REPLY: msgspec.json.Decoder[float | ReplayResult] = msgspec.json.Decoder(float | ReplayResult)
