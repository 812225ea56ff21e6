"""The processes in which schedulers run."""

import io
import subprocess
import threading
from contextlib import closing
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest

from seqtop.whatif import driver
from seqtop.whatif.replay import ReplayOptions


def test_a_process_that_has_ended_a_replay_gets_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Mock()
    monkeypatch.setattr(driver, "_Process", start)
    request: Any = None
    with driver.Drivers("none") as drivers:
        for _ in range(3):
            drivers.submit(request).result()
    assert start.call_count == 1
    start.return_value.close.assert_called_once()


def test_progress_is_written_every_tenth_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    output, shares = io.BytesIO(), (0.0, 0.25, 0.5, 0.75, 1.0)
    times = 1.0, 1.05, 1.0 + 0.1, 1.15, 1.25
    monkeypatch.setattr(driver, "time", Mock(monotonic=Mock(side_effect=times)))
    progress = driver._progress_to(output)
    for share in shares:
        progress(share)
    assert output.getvalue() == b"0.0000\n0.5000\n1.0000\n"


def hanging(*_: object, **__: object) -> MagicMock:
    """Returns a process that answers nothing until it is killed."""
    killed = threading.Event()

    def readline() -> bytes:
        killed.wait()
        return b""

    return MagicMock(stdout=Mock(readline=readline), kill=killed.set)


def test_a_replay_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", hanging)
    request = driver.ReplayRequest("a.seqtop", None, ReplayOptions())
    with (
        closing(driver._Process("python", "none")) as process,
        pytest.raises(driver.DriverFailedError, match=r"^no result after 0\.01 seconds$"),
    ):
        process.run(request, lambda _: None, timeout=0.01)
