"""Ends of commands that run until they are interrupted, or until their parent process ends."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def until_signalled() -> Iterator[threading.Event]:
    """Yields an event that SIGINT and SIGTERM set; they do not end the process meanwhile."""
    ended = threading.Event()
    previous = {
        number: signal.signal(number, lambda *_: ended.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield ended
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def when_stdin_closes() -> threading.Event:
    """Returns an event that is set at the end of standard input, on a thread that reads it.

    Standard input is a pipe from another process, which ends with that process however it ends.
    """
    closed = threading.Event()

    def read() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 4096):  # sys.stdin would hold its lock at exit
                pass
        closed.set()

    threading.Thread(target=read, name="seqtop-stdin", daemon=True).start()
    return closed
