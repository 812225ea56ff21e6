"""A version number that one thread increases and others watch."""

import threading
import time
from collections.abc import Callable


class Observable:
    """Counts its changes and calls back at each of them."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change. Any thread may read it."""
        self._callbacks: tuple[Callable[[], object], ...] = ()
        self._callbacks_lock = threading.Lock()

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Calls `callback` after each change, on the thread that makes the change.

        It may be called under a lock, so it has to return quickly and must not raise.
        """
        with self._callbacks_lock:
            self._callbacks = (*self._callbacks, callback)

    def remove_callback(self, callback: Callable[[], object]) -> None:
        """Removes a callback that `add_callback` added."""
        with self._callbacks_lock:
            self._callbacks = tuple(other for other in self._callbacks if other != callback)

    def wait_until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Waits up to `timeout` seconds for a change that makes `condition` true.

        Returns:
            True if `condition` is true.
        """
        deadline = time.monotonic() + timeout
        has_changed = threading.Event()
        self.add_callback(has_changed.set)
        try:
            while not condition():
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not has_changed.wait(remaining):
                    return condition()
                has_changed.clear()
            return True
        finally:
            self.remove_callback(has_changed.set)

    def wait_for_change(self, version: int, timeout: float) -> bool:
        """Waits up to `timeout` seconds for a change after `version`; returns whether one came."""
        return self.wait_until(lambda: self.version != version, timeout)

    def changed(self) -> None:
        """Counts a change and calls back."""
        # In this order: a callback that compares versions sees the change.
        self.version += 1
        for callback in self._callbacks:
            callback()
