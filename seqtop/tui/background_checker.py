"""Has a review go on, on a thread of its own and for a small share of the time."""

import threading
import time

from seqtop.checks.background import BackgroundChecker

_SLICE_SECONDS = 0.01
"""Checked at a time."""
_REST = 2.0
"""Rests for so many times as long as it checked: others need the interpreter too."""
_IDLE_SECONDS = 0.1
"""Between looks at a record of which everything has been checked."""


class CheckThread:
    """Runs `review` from `start` to `close`."""

    def __init__(self, review: BackgroundChecker) -> None:
        self._review = review
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seqtop-review", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        rest = 0.0
        while not self._closing.wait(rest):
            begun = time.monotonic()
            is_behind = self._review.advance(_SLICE_SECONDS)
            rest = _REST * (time.monotonic() - begun) if is_behind else _IDLE_SECONDS
