"""Signal handlers that end or suspend the app, and a check for a closed terminal."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
import time
from types import FrameType

from textual.app import App

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end the app; it restores the terminal before."""
_SECONDS_TO_END = 3.0
"""After its terminal was closed."""


def install(app: App[int]) -> None:
    """Installs the handlers. Called on the app's thread when the app starts.

    Does nothing for an app without a terminal: it is part of a program with its own handlers.
    """
    if app.is_headless:
        return
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, app.exit, 128 + number)
    _resume_only_what_was_suspended()
    threading.Thread(target=_watch_terminal, args=(app, loop), daemon=True).start()


def _watch_terminal(app: App[int], loop: asyncio.AbstractEventLoop) -> None:
    """Ends `app` when its terminal is closed, even without a signal.

    A closing terminal sends SIGHUP only to the processes that it controls. Other processes read the
    end of a file from it, which Textual would do for ever. Textual's thread that writes ends with
    an error; if its queue is full before the app exits, the app would wait for it forever.
    """
    assert sys.__stdin__ is not None
    watch = select.poll()
    watch.register(sys.__stdin__.fileno(), 0)  # POLLHUP is always reported
    ((_, happened),) = watch.poll()
    if happened & select.POLLHUP:
        status = 128 + signal.SIGHUP
        loop.call_soon_threadsafe(app.exit, status)
        time.sleep(_SECONDS_TO_END)  # this thread ends with the app
        os._exit(status)


def _resume_only_what_was_suspended() -> None:
    """Ignores SIGCONT without a Ctrl-Z: Textual would start another thread that reads keys."""
    suspend, resume = signal.getsignal(signal.SIGTSTP), signal.getsignal(signal.SIGCONT)
    if not callable(suspend) or not callable(resume):
        return  # a driver that handles neither
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
