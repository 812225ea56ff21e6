"""A few kills of each kind; `benchmarks/kill.py` makes a hundred."""

from collections.abc import Callable
from tempfile import TemporaryDirectory

import pytest

from tests.support import killing


@pytest.mark.parametrize(
    "round_", [killing.kill_recorder, killing.kill_engine, killing.kill_viewer]
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.release("many seeds"))])
def test_kill(round_: Callable[[int, str], str], seed: int) -> None:
    with TemporaryDirectory(prefix="sq") as directory:
        assert round_(seed, directory)
