"""A publisher's process that ends is noticed."""

from types import SimpleNamespace

import pytest

from seqtop.adapters.vllm import hook
from seqtop.adapters.vllm.settings import AdapterSettings
from tests.adapters.vllm.test_step_builder import step
from tests.support.fake_vllm import Request, Scheduler, wrapped
from tests.support.waiting import wait_until


def test_publisher_that_dies_is_noticed(
    modules: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqtop.adapters.vllm.publisher_process._CHECK_SECONDS", 0.0)
    scheduler = Scheduler()
    # A folder that is not there cannot be bound.
    wrapping = hook.follow(scheduler, AdapterSettings(bind="ipc:///nonexistent/socket"))
    assert wrapping is not None

    def noticed() -> bool:
        scheduler.add_request(Request("one-00000000", [1, 2, 3], 1))
        step(scheduler)
        return not wrapping.active

    wait_until(noticed)
    assert wrapped(scheduler) == []
    assert "exit status 3" in caplog.text
