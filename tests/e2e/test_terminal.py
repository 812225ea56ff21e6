"""The tests' own terminal shows whole frames of a program."""

import sys

from tests.support.terminal import Terminal

PROGRAM = r"""
import sys, tty
def write(text):
    print(end=text, flush=True)
tty.setcbreak(0)
write("\x1b[?2026$p")
answer = sys.stdin.read(len("\x1b[?2026;2$y"))
write("known " if answer == "\x1b[?2026;2$y" else "unknown ")
write("\x1b[?2026hone \x1b[>1")
sys.stdin.read(1)
write("utwo \x1b[?2026l")
write("three \x1b[>")
sys.stdin.read(1)
write("1ufour ")
sys.stdin.read(1)
"""


def test_a_frame_is_seen_once_it_is_whole() -> None:
    terminal = Terminal(sys.executable, "-c", PROGRAM)
    try:
        terminal.wait_until(lambda: b"one " in terminal.output)
        assert terminal.text.split() == ["known"]
        terminal.press("x")
        terminal.wait_until(lambda: b"three \x1b[>" in terminal.output)
        assert terminal.text.split() == ["known", "one", "two", "three"]
        terminal.press("x")
        terminal.wait_until(lambda: "four" in terminal.text)
        assert terminal.text.split() == ["known", "one", "two", "three", "four"]
    finally:
        terminal.close()
