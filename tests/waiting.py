"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], *, seconds: float = 10.0) -> None:
    """Wait for `condition`, and fail the test if it never comes."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the awaited condition never came"
        time.sleep(0.005)
