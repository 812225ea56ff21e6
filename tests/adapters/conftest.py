"""Modules in the place of vLLM's."""

import sys
from types import SimpleNamespace

import pytest

from tests.support import fake_vllm
from tests.support.fake_vllm import Scheduler


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules with the version of vLLM and its class of requests."""
    name, request = "from_engine_core_request", SimpleNamespace(Request=fake_vllm.Request)
    monkeypatch.setattr(fake_vllm.Request, name, vars(fake_vllm.Request)[name])  # is restored
    monkeypatch.setitem(sys.modules, "vllm.v1.request", request)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.33.0"))


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules of vLLM that the hook imports, with a scheduler class of this test's own."""

    class Fresh(Scheduler):
        def __init__(self) -> None:
            super().__init__()

    class SchedulerConfig:
        scheduler_class = Fresh

        def get_scheduler_cls(self) -> type[Scheduler]:
            return self.scheduler_class

    vllm = SimpleNamespace(__version__="0.33.0")
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    config = SimpleNamespace(SchedulerConfig=SchedulerConfig)
    monkeypatch.setitem(sys.modules, "vllm.config", config)
    return SimpleNamespace(vllm=vllm, config=SchedulerConfig)
