"""Kills at random moments: one of each kind, and a hundred before a release."""

from collections.abc import Callable
from tempfile import TemporaryDirectory

import pytest

from tests.support import killing

ROUNDS = ((killing.kill_recorder, 40), (killing.kill_engine, 30), (killing.kill_viewer, 30))


@pytest.mark.parametrize(
    ("kill", "seed"),
    [
        pytest.param(kill, seed, marks=pytest.mark.release("many seeds") if seed else ())
        for kill, count in ROUNDS
        for seed in range(count)
    ],
)
def test_kill(kill: Callable[[int, str], str], seed: int) -> None:
    with TemporaryDirectory(prefix="sq") as directory:
        assert kill(seed, directory)
