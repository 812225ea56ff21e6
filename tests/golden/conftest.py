"""Comparison with stored data; `pytest tests/golden --update` stores it anew."""

import difflib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from seqtop import __version__
from seqtop.history import FileStore
from tests.support.stored_run import write_run

DATA = Path(__file__).parent / "data"
RECORDINGS = DATA / "recordings"
MAX_LINES, MAX_WIDTH = 40, 160
"""The most of a difference that is shown."""

Compare = Callable[[str, str], None]


@pytest.fixture(scope="session")
def updates(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update"))


@pytest.fixture
def compare(updates: bool) -> Compare:
    """Compares a text with a stored one, or stores it."""

    def compare(name: str, text: str) -> None:
        path = DATA / name
        if updates:
            path.write_text(text, newline="")
        stored = path.read_text().splitlines()
        lines = difflib.unified_diff(stored, text.splitlines(), name, "now", n=0, lineterm="")
        if difference := [*islice(lines, MAX_LINES)]:
            shown = [line[:MAX_WIDTH] for line in difference]
            pytest.fail("\n".join([*shown, "If it is meant: pytest tests/golden --update"]))

    return compare


@pytest.fixture(scope="session")
def recording(updates: bool) -> Iterator[FileStore]:
    """The stored recording of this version."""
    path = RECORDINGS / f"{__version__}.seqtop"
    if updates:
        write_run(path)
    with FileStore(path) as recording:
        yield recording
