"""A program on a real pseudo-terminal, its screen read through a terminal emulator."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

COLUMNS, ROWS = 120, 40


class Terminal:
    """A program on a pseudo-terminal of `size` (columns, rows), and what a person would see of it.

    It runs in the folder `cwd`, by default this process's.
    """

    def __init__(
        self, *command: str, size: tuple[int, int] = (COLUMNS, ROWS), cwd: Path | None = None
    ) -> None:
        columns, rows = size
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen = pyte.Screen(columns, rows)
        self.output = b""
        """All that the program has written."""
        self._stream = pyte.ByteStream(self.screen)
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLUMNS": str(columns),
            "LINES": str(rows),
        }
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=cwd
        )
        os.close(slave)

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_until(self, condition: Callable[[], object], *, seconds: float = 60.0) -> None:
        """Go on reading the screen until `condition` holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"it never came; the screen:\n{self.text}"
            self.read(0.05)

    def read(self, seconds: float) -> None:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if ready:
            try:
                # DECRQM replies and the like matter to Textual only, so nothing is answered.
                data = os.read(self._master, 65536)
                self.output += data
                self._stream.feed(_without_private_csi(data))
            except OSError:  # the program has closed its end
                time.sleep(seconds)

    def hang_up(self) -> None:
        """Close the terminal; the program goes on if it likes."""
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)


def _without_private_csi(data: bytes) -> bytes:
    """Drop the sequences that pyte takes for text (kitty's keyboard protocol and such)."""
    return re.sub(rb"\x1b\[[<>=][0-9;]*[a-zA-Z]", b"", data)
