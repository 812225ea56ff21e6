"""A dormant engine: nothing is wrapped until a client wakes it, nor after the last one has left."""

import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from seqtop.adapters import vllm as adapter
from seqtop.live.session import Session
from seqtop.transport import local_engines
from seqtop.transport.connection import ConnectionState
from seqtop.transport.local_engines import LocalEngine
from tests.adapters.test_step_builder import SHARED, step_and_assert_shows
from tests.support.fake_vllm import Request, Scheduler, step, wrapped
from tests.support.waiting import SECONDS, wait_until


@pytest.fixture
def scheduler(modules: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    monkeypatch.setenv("SEQTOP_BIND", "dormant")
    adapter.register()
    scheduler = modules.config().get_scheduler_cls()()
    yield scheduler
    scheduler.shutdown()


def test_it_is_woken_between_two_steps_and_sleeps_after_the_last_viewer(
    scheduler: Scheduler,
) -> None:
    assert wrapped(scheduler) == []
    scheduler.add_request(Request("one-00000000", SHARED, 10_000))
    scheduler.add_request(Request("two-00000000", SHARED, 10_000))
    for _ in range(3):
        step(scheduler)
    (engine,) = local_engines.find()
    assert (engine.pid, engine.endpoint) == (os.getpid(), "")
    endpoint = local_engines.wake(engine.pid)
    assert wrapped(scheduler) == ["schedule"], "until the next step"
    assert local_engines.wake(engine.pid) == endpoint, "it is awake already"
    wait_until(lambda: local_engines.find() == [LocalEngine(os.getpid(), "org/little", endpoint)])
    with Session(endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        step(scheduler)
        wait_until(lambda: session.state.step == 0)
        scheduler.num_updates = 1  # of those that are published
        assert {"schedule", "update_from_output", "free_blocks"} <= {*wrapped(scheduler)}
        for _ in range(3):
            step_and_assert_shows(session, scheduler)

    def sleeps() -> bool:
        step(scheduler)
        return wrapped(scheduler) == []

    wait_until(sleeps)
    assert [engine.endpoint for engine in local_engines.find()] == [""]
    with Session(local_engines.wake(os.getpid())) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        step(scheduler)
        wait_until(lambda: len(session.state.requests) == 2)
        scheduler.num_updates = session.state.step + 1
        step_and_assert_shows(session, scheduler)
