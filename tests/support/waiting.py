"""Waiting for what other threads and processes do."""

import time
from collections.abc import Callable

SECONDS = 60.0
"""How long anything is waited for before the test fails; far more than anything takes."""
MILLISECONDS = int(1_000 * SECONDS)


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for `condition`, and fail the test if it never comes."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the awaited condition never came"
        time.sleep(0.005)
