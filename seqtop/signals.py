"""Signal handlers of commands that run until they are interrupted."""

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
