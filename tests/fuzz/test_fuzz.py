"""A few hundred mutated inputs of each kind; `python -m tests.fuzz` feeds as many as one likes."""

import sys

import pytest

from tests.release import mutated_recordings
from tests.support import fuzz
from tests.support.commands import run

COUNTS = {
    "wire": 1_000,
    "recordings": 150,
    "requests": 300,
    "kv_events": 300,
    "http": 40,
    "models": 40,
}
"""Inputs that take a second or two."""


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_nothing_but_the_promised_exceptions(kind: str) -> None:
    result = fuzz.run(kind, COUNTS[kind], seed=0)
    assert 0.4 <= result.share < 1.0


def test_commands_end_on_mutated_recordings() -> None:
    """`python -m tests.release mutated_recordings` has as many as one likes.

    A new process measures them: the children of this one begin with all the memory that it has.
    """
    program = (
        "from tests.release import mutated_recordings;"
        "outcome = mutated_recordings.measure(1, seed=1);"
        "assert not outcome.problems, outcome.problems;"
        "print(outcome.num_runs, outcome.statuses[0])"
    )
    done = run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    num_runs, num_complete = map(int, done.stdout.split())
    assert num_runs == mutated_recordings.NUM_COMMANDS
    assert num_complete > num_runs / 4, "most were to be read in part, at least"


@pytest.mark.release("an hour")
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("wire", 400_000),
        ("kv_events", 250_000),
        ("recordings", 150_000),
        ("requests", 120_000),
        ("http", 60_000),
        ("models", 20_000),
    ],
)
def test_a_million_inputs(kind: str, count: int) -> None:
    result = fuzz.run(kind, count, seed=1)
    assert 0.5 <= result.share < 1.0
    tenth = max(len(result.memory) // 10, 1)
    assert max(result.memory[-tenth:]) < max(result.memory[:tenth]) + 32 * 2**20
