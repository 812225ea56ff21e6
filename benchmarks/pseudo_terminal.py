"""Programs on a pseudo-terminal, whose output is counted and discarded."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

SIZE = (160, 50)
ROOT = Path(__file__).resolve().parents[1]

EMPTY_APP = "from textual.app import App; App().run()"
"""The peer: an empty Textual app."""


class OnTerminal:
    """A program and the number of bytes that it writes to its terminal."""

    def __init__(self, command: Sequence[str], home: str) -> None:
        self._master, slave = pty.openpty()
        columns, rows = SIZE
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        environment = os.environ | {
            "TERM": "xterm-256color",
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": home,
            "XDG_STATE_HOME": home,
        }
        # pip compiles installed modules, so a start includes no compilation.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self.num_bytes = 0
        """Bytes written so far."""
        self.started = time.monotonic()
        # A session of its own, so that the program ends with its terminal.
        self.process = subprocess.Popen(
            command, env=environment, preexec_fn=lambda: os.login_tty(slave)
        )
        os.close(slave)

    def read(self, seconds: float) -> None:
        """Reads the output for a time."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                self._take()

    def read_until(self, num_bytes: int, *, seconds: float = 60.0) -> float:
        """Returns the seconds from the start of the program until it had written so many bytes."""
        while self.num_bytes < num_bytes:
            if not select.select([self._master], [], [], seconds)[0]:
                raise TimeoutError("the program has written nothing for long")
            self._take()
        return time.monotonic() - self.started

    @property
    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    @property
    def resident_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _take(self) -> None:
        try:
            self.num_bytes += len(os.read(self._master, 65536))
        except OSError as error:  # the other end is closed
            raise RuntimeError("the program has ended") from error


@contextmanager
def on_terminal(*arguments: str) -> Iterator[OnTerminal]:
    """Runs this Python with `arguments`."""
    with tempfile.TemporaryDirectory(prefix="sq") as home:
        program = OnTerminal([sys.executable, *arguments], home)
        try:
            yield program
        finally:
            program.close()
