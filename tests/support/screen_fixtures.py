"""Fixtures of all tests that draw screens, for their conftest.py."""

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from seqtop.tui.rendering.line_view import LineView
from tests.support.drawing import counted_lines


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the preferences of whoever runs the tests from the environment."""
    for name in ("NO_COLOR", "TEXTUAL_THEME", "TEXTUAL_ANIMATIONS", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.fixture
def lines() -> Iterator[Counter[LineView]]:
    """The number of lines that each view has drawn."""
    with counted_lines() as counts:
        yield counts
