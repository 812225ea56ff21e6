"""What ends the app, or halts it, from outside: signals, and a terminal that goes away."""

from __future__ import annotations

import asyncio
import select
import signal
import sys
import threading
from types import FrameType

from textual.app import App

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""End the app in an orderly way, as they would a shell's other programs, the terminal restored."""


def heed(app: App[int]) -> None:
    """Have `app` heed all that from now on; called on its own thread, as it starts.

    One without a terminal is part of another program, whose signals are that program's.
    """
    if app.is_headless:
        return
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, app.exit, 128 + number)
    _resume_only_what_was_suspended()
    threading.Thread(target=_watch_terminal, args=(app, loop), daemon=True).start()


def _watch_terminal(app: App[int], loop: asyncio.AbstractEventLoop) -> None:
    """End `app` when its terminal is closed, also where no signal tells of it.

    A terminal that closes sends SIGHUP only to whoever it controls; to others it is a file that has
    ended, which Textual would read for ever.
    """
    assert sys.__stdin__ is not None
    watch = select.poll()
    watch.register(sys.__stdin__.fileno(), 0)  # a hang-up is always told
    ((_, happened),) = watch.poll()
    if happened & select.POLLHUP:
        loop.call_soon_threadsafe(app.exit, 128 + signal.SIGHUP)


def _resume_only_what_was_suspended() -> None:
    """Textual takes every SIGCONT for the end of a Ctrl-Z, and reads keys with one thread more."""
    suspend, resume = signal.getsignal(signal.SIGTSTP), signal.getsignal(signal.SIGCONT)
    if not callable(suspend) or not callable(resume):
        return  # a driver that takes no notice of either
    is_suspended = False

    def halted(number: int, frame: FrameType | None) -> None:
        nonlocal is_suspended
        is_suspended = True
        suspend(number, frame)

    def continued(number: int, frame: FrameType | None) -> None:
        nonlocal is_suspended
        if is_suspended:
            is_suspended = False
            resume(number, frame)

    signal.signal(signal.SIGTSTP, halted)
    signal.signal(signal.SIGCONT, continued)
