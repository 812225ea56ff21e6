"""Starts of programs in Python, each a process of its own that need not import packages again.

A server for each kind of program has imported them, and forks. What is the project's own, a program
still imports itself, except for the driver of predictions.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_OF_THE_APP = (
    *("msgspec.msgpack", "platformdirs", "sortedcontainers", "textual.app", "textual.command"),
    *("textual.containers", "textual.drivers.linux_driver", "textual.layouts.factory"),
    *("textual.pilot", "textual.scrollbar", "textual.validation", "textual.widgets.option_list"),
    *("zmq.asyncio", "zmq.utils.monitor", "zstandard", "rich.text", "rich.table", "rich.cells"),
    *("argparse", "csv", "hashlib", "dis", "inspect", "tempfile", "concurrent.futures.thread"),
    *("gzip", "resource", "shlex", "statistics"),
)
_OF_THE_ENGINE = (
    *("torch", "torch.nn.functional", "tokenizers", "safetensors.torch", "jinja2.sandbox"),
    *("starlette.applications", "starlette.responses", "uvicorn"),
)
_OF_THE_DRIVER = (
    *("engine_stub.engine", "engine_stub.entrypoints.reporting", "engine_stub.model_executor.hub"),
    *("engine_stub.worker.recorded_worker", "seqtop.whatif.driver"),
)
_PRELOADED = {
    "seqtop": _OF_THE_APP,
    "engine_stub": _OF_THE_APP,
    "engine_stub serve": (*_OF_THE_APP, *_OF_THE_ENGINE),
    "engine_stub.entrypoints.whatif": _OF_THE_DRIVER,
}
"""The modules that are imported for a program, or a command of it."""

_READ_AT_START = ("PYTHON", "LC_", "LANG", "OMP_", "MKL_", "TEXTUAL_", "CUDA_")
"""The beginnings of variables that the interpreter or packages read when they start."""
_ENVIRONMENT = dict(os.environ)
"""The variables of all servers: not those of the test that needs one first."""
_OPTIONS = {"stdin", "stdout", "stderr", "text", "encoding", "cwd", "env", "start_new_session"}
"""The options of `subprocess.Popen` that there are."""


def start(
    command: list[str] | tuple[str, ...], *, is_short: bool = False, **options: Any
) -> subprocess.Popen[Any]:
    """Starts a program as `subprocess.Popen` does, forked if that makes no difference to it.

    Args:
        command: The program and its arguments.
        is_short: Whether it ends by itself, as an engine does before it imports torch.
        options: Options of `subprocess.Popen`.
    """
    if (kind := _kind_of(command, is_short, options)) is None:
        return subprocess.Popen(command, **options)
    return _Forked(kind, command, options)


def _kind_of(
    command: list[str] | tuple[str, ...], is_short: bool, options: dict[str, Any]
) -> str | None:
    """Returns a key of `_PRELOADED`, or `None` if a program has to start from nothing."""
    is_possible = sys.platform == "linux" and options.keys() <= _OPTIONS
    if not is_possible or command[:2] != type(command)((sys.executable, "-m")):
        return None
    kinds = [command[2]] if is_short else [" ".join(command[2:4]), command[2]]
    kind = next((kind for kind in kinds if kind in _PRELOADED), None)
    variables = _read_at_start(options.get("env") or os.environ)
    return kind if variables == _read_at_start(_ENVIRONMENT) else None


def _read_at_start(environment: Any) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_READ_AT_START) and name != "PYTHONFAULTHANDLER"
    }


class _Server:
    """A process of `fork_server.py`, started when it is needed."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._control: socket.socket | None = None
        self._lock = threading.Lock()

    def fork(self, order: dict[str, Any], descriptors: list[int]) -> int:
        """Returns the process id of a new child."""
        with self._lock:
            if self._control is None:
                self._control = self._start()
            socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
            answer = self._control.recv(100)
        assert answer, f"the server of {self._kind} has ended"
        return int(answer)

    def _start(self) -> socket.socket:
        own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = (sys.executable, "-m", "tests.support.fork_server", str(its.fileno()))
        with its:
            self._process = subprocess.Popen(
                [*program, *_PRELOADED[self._kind]],
                cwd=_ROOT,
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
            )
        return own

    def end(self) -> None:
        """Ends the process."""
        if self._control is not None:
            self._control.close()
            self._control = None
            self._process.wait()


def end_servers() -> None:
    """Ends all servers. Further starts begin new ones."""
    for kind in _PRELOADED:
        _server(kind).end()


@functools.cache
def _server(kind: str) -> _Server:
    return _Server(kind)


class _Forked(subprocess.Popen[Any]):
    """A child of a server."""

    def __init__(
        self, kind: str, command: list[str] | tuple[str, ...], options: dict[str, Any]
    ) -> None:
        self._kind = kind
        self._taking = threading.Lock()
        super().__init__(command, **options)

    def _execute_child(self, *arguments: Any) -> None:
        signature = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
        given = signature.bind(self, *arguments).arguments
        streams = given["p2cread"], given["c2pwrite"], given["errwrite"]
        self._status, status = os.pipe()
        order = {
            "command": given["args"][2:],
            "cwd": os.fspath(given["cwd"] or Path.cwd()),
            "env": dict(given["env"] or os.environ),
            "start_new_session": given["start_new_session"],
            "collector": (700, 10, 10),
        }
        descriptors = [own if own >= 0 else number for number, own in enumerate(streams)]
        try:
            self.pid = _server(self._kind).fork(order, [*descriptors, status])
        finally:
            os.close(status)
            names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(given[name] for name in names))  # type: ignore[attr-defined]
        self._child_created = True

    def __del__(self) -> None:
        super().__del__()
        os.close(self._status)  # not before: another thread may be waiting for it

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and _is_readable(self._status, 0):
            self._take_status()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not _is_readable(self._status, timeout):
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            self._take_status()
        return self.returncode

    def _take_status(self) -> None:
        with self._taking:
            if self.returncode is None:
                said = os.read(self._status, 100)
                # Without a status, its server has ended.
                self.returncode = int(said or -signal.SIGKILL)


def _is_readable(descriptor: int, timeout: float | None) -> bool:
    """Waits until there is something to read; returns `False` after `timeout` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if timeout is None else 1_000 * timeout))
