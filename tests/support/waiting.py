"""Waiting for what other threads and processes do."""

import inspect
import reprlib
import time
from collections.abc import Callable, Iterator

SECONDS = 60.0
"""The longest wait for a condition before the test fails; far more than anything takes."""
MILLISECONDS = int(1_000 * SECONDS)

_LONG = reprlib.Repr()
_LONG.maxother = _LONG.maxstring = 1_000


def pauses() -> Iterator[float]:
    """Yields the seconds between the looks at a condition: of a long wait, each costs less."""
    pause = 0.005
    while True:
        yield pause
        pause = min(1.2 * pause, 0.05)


def wait_until(condition: Callable[[], object]) -> None:
    """Waits for a condition; if it never comes true, the test fails and says which one it was."""
    deadline = time.monotonic() + SECONDS
    intervals = pauses()
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"it never came true: {described(condition)}")
        time.sleep(next(intervals))


def described(condition: Callable[[], object]) -> str:
    """Returns the source of a condition, and the values of the variables that it uses."""
    try:
        source = inspect.getsource(condition).strip()
        variables = inspect.getclosurevars(condition).nonlocals
    except (OSError, TypeError):  # a method of a built-in type
        return repr(condition)
    lines = [source]
    for name, value in variables.items():
        shown = getattr(value, "connection", value)  # of a session
        lines.append(f"{name}: {_LONG.repr(shown)}")
    return "\n".join(lines)
