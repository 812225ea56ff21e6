"""A program on a real pseudo-terminal, its screen read through a terminal emulator."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

from tests.support.forked import start
from tests.support.waiting import SECONDS

COLUMNS, ROWS = 120, 40
MARKS_ASKED = b"\x1b[?2026$p"
"""Asks whether the terminal knows synchronised output."""
MARKS_KNOWN = b"\x1b[?2026;2$y"
FRAME_BEGINS, FRAME_ENDS = b"\x1b[?2026h", b"\x1b[?2026l"
_UNFINISHED = re.compile(rb"\x1b(\[[0-?]*[ -/]*)?$")
"""An escape sequence whose end has not been read."""


class Terminal:
    """A program on a pseudo-terminal of `size` (columns, rows), and what a person would see of it.

    It runs in the folder `cwd`, by default this process's. The terminal knows synchronised output:
    a frame that the program marks as such is seen once all of it has come, however it is split on
    the way.
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
        self._text: str | None = None
        """The text of the screen, if it is known: it is read more often than it changes."""
        self._held = b""
        """Read, but not seen: the beginning of a frame."""
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLUMNS": str(columns),
            "LINES": str(rows),
            "PYTHONFAULTHANDLER": "1",
        }
        self.process = start(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
        os.close(slave)

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = "\n".join(self.screen.display)
        return self._text

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_until(self, condition: Callable[[], object]) -> None:
        """Go on reading the screen until `condition` holds, which sees whole frames only."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() >= deadline:
                raise AssertionError(f"it never came; the screen:\n{self.text}\n{self._stacks()}")
            self.read(0.05)

    def _stacks(self) -> str:
        """Aborts the program; returns what its threads were doing, if it is in Python."""
        self.process.send_signal(signal.SIGABRT)
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            self.read(0.05)
        _, error, stacks = self.output.rpartition(b"Fatal Python error")
        return (error + stacks).decode(errors="replace") if error else "it is not in Python"

    def read(self, seconds: float) -> None:
        ready, _, _ = select.select([self._master], [], [], seconds)
        if ready:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the program has closed its end
                time.sleep(seconds)
            else:
                self._take(data)

    def _take(self, data: bytes) -> None:
        before = len(self.output)
        self.output += data
        # Of all that a program asks, only this is answered: it changes what is drawn.
        if MARKS_ASKED in self.output[max(before - len(MARKS_ASKED) + 1, 0) :]:
            os.write(self._master, MARKS_KNOWN)
        self._held += data
        begins = self._held.rfind(FRAME_BEGINS)
        if begins > self._held.rfind(FRAME_ENDS):
            whole = begins
        else:
            unfinished = _UNFINISHED.search(self._held)
            whole = unfinished.start() if unfinished else len(self._held)
        self._text = None
        self._stream.feed(_without_private_csi(self._held[:whole]))
        self._held = self._held[whole:]

    def hang_up(self) -> None:
        """Close the terminal; the program goes on if it likes."""
        os.close(self._master)
        self._master = -1

    def close(self) -> None:
        """Kill the program and all that it started, such as the commands of a shell."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self._master >= 0:
            os.close(self._master)


def _without_private_csi(data: bytes) -> bytes:
    """Drop the sequences that pyte takes for text (kitty's keyboard protocol and such)."""
    return re.sub(rb"\x1b\[[<>=][0-9;]*[a-zA-Z]", b"", data)
