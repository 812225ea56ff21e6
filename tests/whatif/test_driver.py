"""The processes in which schedulers run."""

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
