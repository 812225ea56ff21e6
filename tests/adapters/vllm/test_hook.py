"""The adapter never harms vLLM: unset, unknown versions, and whatever may go wrong in it."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seqtop.adapters import vllm as adapter
from seqtop.adapters.vllm import hook
from seqtop.live.session import Session
from seqtop.transport.connection import ConnectionState
from seqtop.transport.endpoints import EndpointError
from seqtop.transport.publisher_settings import PublisherSettings, endpoint_of
from tests.support.fake_vllm import (
    BlockPool,
    FCFSRequestQueue,
    KVCacheManager,
    Request,
    Scheduler,
    step,
    wrapped,
)
from tests.support.waiting import SECONDS, wait_until


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
    classes = modules.config, modules.config.scheduler_class
    before = [dict(vars(one)) for one in classes]
    adapter.register()
    assert [dict(vars(one)) for one in classes] == before
    assert wrapped(created(modules)) == []


def created(modules: SimpleNamespace) -> Any:
    """A scheduler, created as vLLM's EngineCore does."""
    return modules.config().get_scheduler_cls()()


def test_a_subclass_is_observed_as_its_constructor_leaves_it(
    modules: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    class Subclass(modules.config.scheduler_class):  # type: ignore[misc, name-defined]
        """One with its own `schedule`, queue and pool, as Dynamo, vllm-ascend and others have."""

        def __init__(self) -> None:
            super().__init__()
            self.waiting, self.pool = FCFSRequestQueue(), BlockPool(12)
            self.kv_cache_manager = KVCacheManager(self.pool)
            self.num_calls = 0

        def schedule(self, throttle_prefills: bool = False) -> Any:
            self.num_calls += 1
            return super().schedule(throttle_prefills)

    monkeypatch.setenv("SEQTOP_BIND", endpoint)
    adapter.register()
    modules.config().get_scheduler_cls()  # of the base class
    modules.config.scheduler_class = Subclass
    scheduler = created(modules)
    with Session(endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        for letter in "ab":
            scheduler.add_request(Request(f"{letter}-00000000", [1] * 28, 3))
        step(scheduler)
        wait_until(lambda: session.state.step == 0)
        assert scheduler.num_calls == 1
        running, _ = session.state.sequences.values()
        assert running.block_table == scheduler.table("a-00000000")
        reason = session.state.requests["b"].wait_reason
        assert reason is not None
        assert (running.num_computed_tokens, reason.cause) == (16, "token_budget")
        stats = session.state.stats
        assert stats is not None
        assert stats.num_free_blocks == scheduler.pool.get_num_free_blocks()
    scheduler.shutdown()


def test_any_version_with_the_attributes_is_followed(
    modules: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("SEQTOP_BIND", endpoint)
    modules.vllm.__version__ = "9.9.9"
    adapter.register()
    scheduler = created(modules)
    assert wrapped(scheduler)
    scheduler.shutdown()
    assert wrapped(scheduler) == []


def test_missing_attributes_are_named_in_one_line(
    modules: SimpleNamespace, caplog: pytest.LogCaptureFixture, endpoint: str
) -> None:
    scheduler = Scheduler()
    del scheduler.kv_cache_manager.block_pool, scheduler.running
    assert hook.follow(scheduler, PublisherSettings(bind=endpoint)) is None
    assert wrapped(scheduler) == []
    (record,) = caplog.records
    assert "vLLM 0.33.0 cannot be observed" in record.message
    assert "no running, kv_cache_manager.block_pool.num_gpu_blocks" in record.message


def test_viewers_are_told_why_an_engine_cannot_be_observed(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Scheduler, "_preempt_request")
    scheduler = Scheduler()
    reason = "vLLM 0.33.0 cannot be observed, as its scheduler has no _preempt_request"
    attachment = hook.follow(scheduler, PublisherSettings(bind=endpoint))
    assert attachment is not None
    assert wrapped(scheduler) == []
    for _ in range(2):  # a later one, too
        with Session(endpoint) as session:
            session.await_engine(SECONDS)
            assert session.state.info is not None
            assert session.state.info.not_available == {"requests": reason}
            assert session.state.info.num_gpu_blocks == scheduler.pool.num_gpu_blocks
    attachment.close("the test ends")


def test_a_file_binds_as_the_variable_does(
    modules: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, endpoint: str
) -> None:
    monkeypatch.delenv("SEQTOP_BIND", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "seqtop").mkdir()
    (tmp_path / "seqtop" / "bind").write_text(f"{endpoint}\n")
    adapter.register()
    scheduler = created(modules)
    assert wrapped(scheduler)
    scheduler.shutdown()


def test_a_pipe_in_the_place_of_the_file_does_not_stop_the_engine(
    modules: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("SEQTOP_BIND", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "seqtop").mkdir()
    os.mkfifo(tmp_path / "seqtop" / "bind")
    adapter.register()
    assert wrapped(created(modules)) == []


def test_other_machines_are_let_in_only_on_request(modules: SimpleNamespace) -> None:
    open_to_all = "tcp://0.0.0.0:5557"
    assert hook.follow(Scheduler(), PublisherSettings(bind=open_to_all)) is None
    with pytest.raises(EndpointError, match="or set SEQTOP_INSECURE=1"):
        endpoint_of(PublisherSettings(bind=open_to_all), 0)
    assert endpoint_of(PublisherSettings(bind=open_to_all, insecure=True), 0) == open_to_all
