"""Whatever ends the app, short of kill -9: the terminal is as it was before."""

import signal
import sys
from collections.abc import Iterator

import pytest
from terminal import Terminal

from seqtop.wire.endpoints import DEFAULT_ENDPOINT

MODES_OFF = (
    b"\x1b[?1049l",  # the alternate screen
    b"\x1b[?25h",  # a hidden cursor
    b"\x1b[?1003l",  # reports of the mouse
    b"\x1b[?2004l",  # bracketed paste
)
CRASH = """
from seqtop.session import Session
from seqtop.tui.app import SeqtopApp
class Broken(SeqtopApp):
    def draw(self):
        if self.feed.source.version > 0:
            raise RuntimeError("a bug")
with Session("ipc:///nowhere/e") as session:
    app = Broken(session)
    app.run()
    raise SystemExit(app.return_code)
"""


@pytest.fixture
def attached() -> Iterator[Terminal]:
    terminal = Terminal(sys.executable, "-m", "seqtop", "attach", DEFAULT_ENDPOINT)
    terminal.wait_until(lambda: "CONNECTING" in terminal.text)
    yield terminal
    terminal.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signal(attached: Terminal, number: signal.Signals) -> None:
    attached.process.send_signal(number)
    assert_restored(attached)
    assert attached.process.returncode == 128 + number
    assert "Traceback" not in attached.text


def test_crash() -> None:
    terminal = Terminal(sys.executable, "-c", CRASH)
    try:
        assert_restored(terminal)
        assert terminal.process.returncode == 1
        assert "a bug" in terminal.text
    finally:
        terminal.close()


def assert_restored(terminal: Terminal) -> None:
    terminal.wait_until(lambda: terminal.process.poll() is not None)
    terminal.wait_until(lambda: all(mode in terminal.output for mode in MODES_OFF))
    for mode in MODES_OFF:
        turned_on = mode[:-1] + (b"h" if mode.endswith(b"l") else b"l")
        assert terminal.output.rfind(mode) > terminal.output.rfind(turned_on), mode


def test_a_terminal_that_closes_without_a_word(attached: Terminal) -> None:
    """As that of a program which its shell does not control: nobody sends it SIGHUP."""
    attached.hang_up()
    assert attached.process.wait(60) == 128 + signal.SIGHUP
