"""The processes in which schedulers run."""

import io
from typing import Any
from unittest.mock import Mock

import pytest

from seqtop.whatif import driver


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
