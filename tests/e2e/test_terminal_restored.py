"""Whatever ends the app, short of kill -9: the terminal is as it was before."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.terminal import Terminal
from tests.support.waiting import SECONDS, wait_until

MODES_OFF = (
    b"\x1b[?1049l",  # the alternate screen
    b"\x1b[?25h",  # a hidden cursor
    b"\x1b[?1003l",  # reports of the mouse
    b"\x1b[?2004l",  # bracketed paste
)
CRASH = """
from seqtop.live.session import Session
from seqtop.tui.app import SeqtopApp
class Broken(SeqtopApp):
    def draw(self):
        if self.ui.source.version > 0:
            raise RuntimeError("a bug")
with Session("ipc:///nowhere/e") as session:
    app = Broken(session)
    app.run()
    raise SystemExit(app.return_code)
"""
STUCK = """
import pathlib, sys, time
from seqtop.live.session import Session
from seqtop.tui import signals
from seqtop.tui.app import SeqtopApp
signals._SECONDS_TO_END = 0.2
class Stuck(SeqtopApp):
    def on_key(self):
        pathlib.Path(sys.argv[1]).touch()
        time.sleep(3_600)
with Session("ipc:///nowhere/e") as session:
    Stuck(session).run()
"""
"""An app whose thread waits forever after a key, as it does if nothing can be written any more.

The key makes a file, whose path is the argument.
"""
MORE = pytest.mark.release("more of the same kind")


@pytest.fixture
def attached(endpoint: str) -> Iterator[Terminal]:
    """The app at an endpoint without a publisher."""
    terminal = Terminal(sys.executable, "-m", "seqtop", "attach", endpoint)
    terminal.wait_until(lambda: "CONNECTING" in terminal.text)
    yield terminal
    terminal.close()


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=MORE), signal.SIGINT]
)
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
        terminal.wait_until(lambda: "a bug" in terminal.text)  # printed after the modes are off
    finally:
        terminal.close()


def assert_restored(terminal: Terminal) -> None:
    terminal.wait_until(lambda: terminal.process.poll() is not None)
    terminal.wait_until(lambda: all(mode in terminal.output for mode in MODES_OFF))
    for mode in MODES_OFF:
        turned_on = mode[:-1] + (b"h" if mode.endswith(b"l") else b"l")
        assert terminal.output.rfind(mode) > terminal.output.rfind(turned_on), mode


@pytest.mark.parametrize(
    "of", [[], pytest.param(["--kv-events"], marks=MORE)], ids=["sequences", "KV events"]
)
def test_a_terminal_that_closes_without_a_word(of: list[str], endpoint: str) -> None:
    """As that of a program which its shell does not control: it gets no SIGHUP."""
    terminal = Terminal(sys.executable, "-m", "seqtop", "attach", *of, endpoint)
    try:
        terminal.wait_until(lambda: "CONNECTING" in terminal.text)
        terminal.hang_up()
        assert terminal.process.wait(SECONDS) == 128 + signal.SIGHUP
    finally:
        terminal.close()


def test_a_terminal_that_closes_while_the_app_waits_forever(tmp_path: Path) -> None:
    waits_forever = tmp_path / "key"
    terminal = Terminal(sys.executable, "-c", STUCK, str(waits_forever))
    try:
        terminal.wait_until(lambda: "CONNECTING" in terminal.text)
        terminal.press("%")
        terminal.wait_until(waits_forever.exists)
        terminal.hang_up()
        assert terminal.process.wait(SECONDS) == 128 + signal.SIGHUP
    finally:
        terminal.close()


def test_going_on_after_a_stop_that_was_no_ctrl_z(attached: Terminal) -> None:
    """Nothing is begun a second time: neither the screen nor a thread that reads keys."""
    process = psutil.Process(attached.process.pid)
    num_threads, num_screens = process.num_threads(), attached.output.count(b"\x1b[?1049h")
    for _ in range(3):
        attached.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
        attached.process.send_signal(signal.SIGCONT)
    attached.press("?")
    attached.wait_until(lambda: "Esc closes" in attached.text)
    assert process.num_threads() == num_threads
    assert attached.output.count(b"\x1b[?1049h") == num_screens == 1


def test_ctrl_z_gives_the_terminal_back_and_takes_it_again(attached: Terminal) -> None:
    process = psutil.Process(attached.process.pid)
    attached.press("\x1a")
    attached.wait_until(lambda: process.status() == psutil.STATUS_STOPPED)
    attached.wait_until(lambda: all(mode in attached.output for mode in MODES_OFF))
    attached.process.send_signal(signal.SIGCONT)
    attached.wait_until(lambda: attached.output.count(b"\x1b[?1049h") == 2)
    attached.press("?")
    attached.wait_until(lambda: "Esc closes" in attached.text)
