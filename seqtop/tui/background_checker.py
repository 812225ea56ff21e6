"""A thread that checks a history for a small share of the time."""

import threading
import time

from seqtop.checks.background import BackgroundChecker

_SLICE_SECONDS = 0.01
"""Time for which it checks without a pause."""
_PAUSE = 2.0
"""Length of a pause, in multiples of the time it checked: other threads need the interpreter."""
_IDLE_SECONDS = 0.1
"""Pause once everything has been checked."""


class CheckThread:
    """Runs `checker` from `start` to `close`."""

    def __init__(self, checker: BackgroundChecker) -> None:
        self._checker = checker
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seqtop-check", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._closing.wait(pause):
            begun = time.monotonic()
            is_behind = self._checker.advance(_SLICE_SECONDS)
            pause = _PAUSE * (time.monotonic() - begun) if is_behind else _IDLE_SECONDS
