"""`seqtop demo` in a real pseudo-terminal, its screen read through a terminal emulator."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

import psutil
import pyte
import pytest

COLUMNS, ROWS = 120, 40


class Terminal:
    """A program on a pseudo-terminal, and what a person would see of it."""

    def __init__(self, *command: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        environment = {
            **os.environ,
            "TERM": "xterm-256color",
            "COLUMNS": str(COLUMNS),
            "LINES": str(ROWS),
        }
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True
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
                self._stream.feed(_without_private_csi(os.read(self._master, 65536)))
            except OSError:  # the program has closed its end
                time.sleep(seconds)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


def _without_private_csi(data: bytes) -> bytes:
    """Drop the sequences that pyte takes for text (kitty's keyboard protocol and such)."""
    return re.sub(rb"\x1b\[[<>=][0-9;]*[a-zA-Z]", b"", data)


@pytest.fixture
def demo() -> Iterator[Terminal]:
    terminal = Terminal(sys.executable, "-m", "seqtop", "demo", "--device", "cpu")
    yield terminal
    terminal.close()


def test_demo_streams_text_obeys_keys_and_leaves_nothing_behind(demo: Terminal) -> None:
    demo.wait_until(lambda: "LIVE" in demo.text)
    demo.wait_until(lambda: "running" in demo.text and "typed-1" in demo.text)
    engine = [child for child in psutil.Process(demo.process.pid).children() if child.is_running()]
    assert len(engine) == 1

    before = demo.text
    demo.wait_until(lambda: demo.text != before)  # it streams
    demo.wait_until(lambda: "waiting" in demo.text)  # it queues
    demo.wait_until(lambda: "preempt" in demo.text)  # it runs out of blocks

    demo.press(" ")
    demo.wait_until(lambda: "PAUSED" in demo.text)
    demo.press(" ")
    demo.wait_until(lambda: "LIVE" in demo.text)

    demo.press("q")
    demo.wait_until(lambda: demo.process.poll() is not None)
    assert demo.process.returncode == 0
    psutil.wait_procs(engine, timeout=20)
    assert not engine[0].is_running()
