"""The lifecycle of requests."""

from pathlib import Path

import pytest

from seqtop.export.lifecycle import EngineRun, RequestLifecycle, read_runs
from seqtop.history import FileStore


@pytest.fixture(scope="module")
def runs(recorded: Path) -> list[EngineRun]:
    with FileStore(recorded) as recording:
        return read_runs(recording)


def lives(runs: list[EngineRun]) -> dict[str, RequestLifecycle]:
    (run,) = runs
    return run.requests


def test_every_request_is_there_though_the_state_forgets(runs: list[EngineRun]) -> None:
    assert [*lives(runs)] == [
        *(f"req-{number}" for number in range(4)),
        "-2+3+cmd|' /C calc'!A0",
        "to-abort",
        "unfinished",
    ]
    assert sum(life.request.num_preemptions for life in lives(runs).values()) > 0
    assert [step.step for step in runs[0].steps] == list(range(len(runs[0].steps)))
