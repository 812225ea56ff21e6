"""The log of requests that fail by an exception, with a limit on its size.

Whoever can send requests that fail could otherwise fill a disk with tracebacks, and slow the
engine's thread down by writing them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

SECONDS_BETWEEN_TRACEBACKS: Final = 10.0
"""The interval of tracebacks. The failures between two of them are only counted."""

_log = logging.getLogger(__name__)


class FailureLog:
    """Logs the exception that is being handled, at most once in a while.

    Args:
        clock: Returns a monotonic time in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged_at: float | None = None
        self._num_unlogged = 0

    def __call__(self, sentence: str, request_id: str) -> None:
        """Logs a failure with its traceback, or counts it.

        Args:
            sentence: A sentence with a place (``%s``) for the request's id.
            request_id: The id, of which only the beginning is logged.
        """
        with self._lock:
            now = self._clock()
            logged_at = self._logged_at
            if logged_at is not None and now - logged_at < SECONDS_BETWEEN_TRACEBACKS:
                self._num_unlogged += 1
                return
            self._logged_at = now
            num_unlogged, self._num_unlogged = self._num_unlogged, 0
        if num_unlogged:
            _log.error("%d more requests have failed since the last traceback", num_unlogged)
        _log.exception(sentence, request_id[:100])


log_failure: Final = FailureLog()
"""The log of this process."""
