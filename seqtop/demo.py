"""Runs the bundled engine in a process of its own, for `seqtop demo`.

This module uses the engine's command line only, so that the inspector never imports torch. Where
the engine or torch is not installed, a recorded run of the demo takes their place.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import msgspec

from seqtop.live.session import Session
from seqtop.text import format as fmt
from seqtop.transport.connection import Connection, ConnectionState

RECORDED_RUN = Path(__file__).with_name("demo.seqtop")
"""The first seconds of the demo; `screenshots/make.py` records them."""

_SECONDS_TO_END = 5.0


def missing_package() -> str | None:
    """Returns the package without which the bundled engine cannot run; `None` if all are there."""
    needed = ("engine_stub", "torch", "safetensors", "tokenizers", "jinja2")
    return next((name for name in needed if find_spec(name) is None), None)


class DemoSession(Session):
    """A session with the bundled engine, whose start and end `connection.detail` describes."""

    def __init__(self, engine: DemoEngine) -> None:
        self._engine = engine
        super().__init__(engine.endpoint)

    @property
    def connection(self) -> Connection:
        """The connection, with the time that the start takes, and the last message after the end.

        It is stopped if the engine ended before it could be reached.
        """
        connection = super().connection
        if connection.state not in (ConnectionState.CONNECTING, ConnectionState.LOST):
            return connection
        state: ConnectionState = connection.state
        if failure := self._engine.failure():
            detail = f"{failure[:1].upper()}{failure[1:]}; q quits"
            if state is ConnectionState.CONNECTING:
                state = ConnectionState.STOPPED
        elif state is ConnectionState.CONNECTING:
            detail = (
                "The bundled engine is starting: it imports torch and loads the model,"
                f" {fmt.growing(float(int(self._engine.age)))} so far."
            )
        else:
            return connection
        return msgspec.structs.replace(connection, state=state, detail=detail)


class DemoEngine:
    """A context manager that runs the bundled engine with its demo workload.

    Args:
        model: A checkpoint, as `engine-stub serve --model` takes it; by default the bundled one.
        device: `cpu`, `cuda` or `auto`.
        pace: The most engine steps per second; 0 for no limit.
        load: A file with a workload to run instead of the demo's.
    """

    def __init__(
        self, *, model: str | None, device: str, pace: float, load: str | None = None
    ) -> None:
        self._arguments = ["--device", device, "--pace", str(pace)]
        self._arguments += ["--demo"] if load is None else ["--load", load, "--threads", "1"]
        if model is not None:
            self._arguments += ["--model", model]

    def __enter__(self) -> DemoEngine:
        # A directory that only this user can enter keeps the sockets private.
        self._directory = tempfile.TemporaryDirectory(prefix="seqtop-")
        self._log = Path(self._directory.name, "engine.log")
        self.endpoint = f"ipc://{self._directory.name}/engine"
        command = [sys.executable, "-m", "engine_stub", "serve", "--control"]
        command += ["--bind", self.endpoint, "--until-stdin-closes", *self._arguments]
        with self._log.open("wb") as log:
            # The engine ends when its standard input closes, however this process ends.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # its address, which is no reason for its end
                stderr=log,
                start_new_session=True,
            )
        self._started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._directory.cleanup()

    @property
    def age(self) -> float:
        """Seconds since the process was started."""
        return time.monotonic() - self._started

    def failure(self) -> str | None:
        """Returns the reason if the engine has ended, else `None`.

        It is the signal that killed the engine, or else the last line of its errors.
        """
        status = self._process.poll()
        if status is None:
            return None
        if status < 0:
            return f"the bundled engine was ended by signal {-status} ({signal.strsignal(-status)})"
        lines = self._log.read_text(errors="replace").strip().splitlines()
        last = lines[-1] if lines else f"exit status {status}"
        return f"the bundled engine ended: {last.removeprefix('engine-stub: ')}"
