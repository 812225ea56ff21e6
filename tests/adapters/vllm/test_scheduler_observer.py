"""An error in the observer disables the adapter, and vLLM goes on."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.adapters.vllm import hook
from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver
from seqtop.adapters.vllm.settings import AdapterSettings
from tests.adapters.vllm.test_step_builder import step
from tests.support.fake_vllm import Request, Scheduler, wrapped


@pytest.mark.parametrize(
    "broken",
    [
        "_before_add",
        "_after_add",
        "_before_schedule",
        "_after_schedule",
        "_before_update",
        "_after_update",
        "_before_free",
        "_after_free",
    ],
)
def test_fault_disables_it_with_one_line_and_vllm_goes_on(
    broken: str,
    modules: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    endpoint: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("injected")

    monkeypatch.setattr(SchedulerObserver, broken, fail)
    scheduler = Scheduler()
    caplog.set_level(logging.WARNING)
    attachment = hook.follow(scheduler, AdapterSettings(bind=endpoint))
    assert attachment is not None
    scheduler.add_request(Request("one-00000000", [1, 2, 3], 3))
    tokens: list[Any] = []
    while scheduler.requests:
        tokens += step(scheduler)[0].outputs
    assert len(tokens) == 3, "the request got what it would have got anyway"
    assert wrapped(scheduler) == []
    (record,) = caplog.records
    assert "RuntimeError: injected" in record.message
    assert "vLLM continues" in record.message
    assert "\n" not in record.message
