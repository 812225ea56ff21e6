"""The command that checks random runs, for one run."""

import pytest

from engine_stub.core.waiting_queue import WaitingQueue
from tests.random_runs.__main__ import main


def test_nothing_is_found_in_a_correct_engine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["1", "--seed", "7"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("steps checked, 0 findings, 0 runs not checked completely")
    assert " s: runs 7 to 7, " in line


def test_engine_that_admits_the_last_request_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(WaitingQueue, "head", property(lambda queue: [*queue][-1]))
    assert main(["1", "--seed", "7"]) == 1
    assert capsys.readouterr().out.startswith("seed 7: step ")
