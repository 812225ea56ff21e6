"""The adapter never harms vLLM: unset, unknown versions, and whatever may go wrong in it."""

import logging
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.adapters import vllm as adapter
from seqtop.adapters.vllm import hook
from seqtop.adapters.vllm.scheduler_observer import SchedulerObserver
from seqtop.adapters.vllm.settings import AdapterSettings, endpoint_of, from_environment
from seqtop.transport.endpoints import EndpointError
from tests.adapters.vllm.test_step_builder import step
from tests.support.fake_vllm import Request, Scheduler
from tests.support.waiting import wait_until


def wrapped(scheduler: Scheduler) -> list[str]:
    """Methods of the scheduler or its pool that are not their classes' own."""
    return [
        name
        for owner in (scheduler, scheduler.pool)
        for name in vars(owner)
        if callable(getattr(type(owner), name, None))
    ]


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules of vLLM that the hook imports, with a scheduler class of this test's own."""

    class Fresh(Scheduler):
        def __init__(self) -> None:
            super().__init__()

    vllm = SimpleNamespace(__version__="0.33.0")
    module = SimpleNamespace(Scheduler=Fresh)
    names = ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched")
    for name in names:
        monkeypatch.setitem(sys.modules, name, vllm)
    monkeypatch.setitem(sys.modules, "vllm.v1.core.sched.scheduler", module)
    monkeypatch.delenv("_SEQTOP_WARNED", raising=False)
    return SimpleNamespace(vllm=vllm, scheduler_class=Fresh)


def test_unset_it_does_nothing() -> None:
    program = (
        "import sys; from seqtop.adapters import vllm; vllm.register();"
        " sys.exit(any(name.startswith(('seqtop.wire', 'seqtop.adapters.vllm.', 'zmq', 'vllm'))"
        " for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], env={}, check=False).returncode == 0


def test_unset_it_patches_nothing(
    modules: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SEQTOP_BIND", raising=False)
    before = dict(vars(modules.scheduler_class))
    adapter.register()
    assert dict(vars(modules.scheduler_class)) == before
    assert wrapped(modules.scheduler_class()) == []


def test_any_subclass_is_followed(
    modules: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("SEQTOP_BIND", endpoint)
    adapter.register()

    class AsyncScheduler(modules.scheduler_class):
        pass

    scheduler = AsyncScheduler()
    assert {"schedule", "update_from_output", "add_request"} <= set(wrapped(scheduler))
    scheduler.shutdown()


def test_unknown_version_stays_off_unless_forced(
    modules: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    endpoint: str,
) -> None:
    monkeypatch.setenv("SEQTOP_BIND", endpoint)
    modules.vllm.__version__ = "9.9.9"
    adapter.register()
    adapter.register()  # as in vLLM's other processes
    assert wrapped(modules.scheduler_class()) == []
    (record,) = caplog.records
    assert "9.9.9" in record.message
    assert "SEQTOP_FORCE=1" in record.message
    monkeypatch.setenv("SEQTOP_FORCE", "1")
    adapter.register()
    scheduler = modules.scheduler_class()
    assert wrapped(scheduler)
    scheduler.shutdown()


@pytest.mark.parametrize(
    "broken",
    [
        "_after_add_request",
        "_before_schedule",
        "_after_schedule",
        "_before_update",
        "_after_update",
        "_before_free",
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
    wrapping = hook.follow(scheduler, AdapterSettings(bind=endpoint))
    assert wrapping is not None
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


def test_scheduler_of_another_make_is_left_alone(
    modules: SimpleNamespace, caplog: pytest.LogCaptureFixture, endpoint: str
) -> None:
    scheduler = Scheduler()
    del scheduler.kv_cache_manager.block_pool
    assert hook.follow(scheduler, AdapterSettings(bind=endpoint)) is None
    assert wrapped(scheduler) == []
    assert len(caplog.records) == 1


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


def test_other_machines_are_let_in_only_on_request(modules: SimpleNamespace) -> None:
    open_to_all = "tcp://0.0.0.0:5557"
    assert hook.follow(Scheduler(), AdapterSettings(bind=open_to_all)) is None
    with pytest.raises(EndpointError, match="other machines"):
        endpoint_of(AdapterSettings(bind=open_to_all), 0)
    assert endpoint_of(AdapterSettings(bind=open_to_all, insecure=True), 0) == open_to_all


def test_each_rank_has_an_endpoint_of_its_own() -> None:
    tcp, ipc = (
        AdapterSettings(bind="tcp://127.0.0.1:5557"),
        AdapterSettings(bind="ipc:///tmp/seqtop"),
    )
    assert [endpoint_of(tcp, rank) for rank in range(3)] == [
        "tcp://127.0.0.1:5557",
        "tcp://127.0.0.1:5559",
        "tcp://127.0.0.1:5561",
    ]
    assert [endpoint_of(ipc, rank) for rank in range(2)] == [
        "ipc:///tmp/seqtop",
        "ipc:///tmp/seqtop.dp1",
    ]


def test_settings_come_from_the_environment() -> None:
    settings = from_environment({"SEQTOP_BIND": "ipc:///tmp/e", "SEQTOP_FORCE": "0"})
    assert settings == AdapterSettings(bind="ipc:///tmp/e")
    settings = from_environment(
        {"SEQTOP_BIND": "ipc:///tmp/e", "SEQTOP_INSECURE": "1", "SEQTOP_TOKENIZER": ""}
    )
    assert settings.insecure
    assert settings.tokenizer == ""
