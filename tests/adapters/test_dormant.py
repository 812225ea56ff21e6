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
from tests.adapters.test_step_builder import (
    SHARED,
    assert_shows,
    catch_up,
    step_and_assert_shows,
    viewer,
)
from tests.support.fake_vllm import (
    AsyncScheduler,
    PipelinedScheduler,
    Request,
    Scheduler,
    step,
    wrapped,
)
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


@pytest.mark.parametrize("kind", [AsyncScheduler, PipelinedScheduler])
@pytest.mark.parametrize("num_before", range(4, 12))
def test_times_and_batches_are_known_from_the_first_step_scheduled_after_the_waking(
    kind: type[Scheduler], num_before: int, endpoint: str
) -> None:
    scheduler = kind(num_gpu_blocks=40)

    def add(number: int) -> None:
        # Every other one stops while its next step is in flight.
        stops = [1_000 + number % 5] if number % 2 else []
        prompt = [number] * (3 + number % 7)
        scheduler.add_request(Request(f"{number}-{number:08x}", prompt, 4 + number % 9, stops))

    for number in range(num_before):
        add(number)
        step(scheduler)
    with viewer(scheduler, endpoint, joins_late=True) as (session, watch):
        scheduler.num_updates = 0  # those that are published
        known = []
        for number in range(num_before, num_before + 12):
            add(number)
            batch = scheduler.in_flight[0][0].num_scheduled_tokens
            step(scheduler)
            catch_up(session, scheduler)
            assert_shows(session, scheduler)
            stats = session.state.stats
            assert stats is not None
            times = stats.scheduler_time, stats.model_execute_time
            known.append(None not in times)
            if known[-1]:
                assert watch.batch == {name[:-9]: chunk for name, chunk in batch.items()}
        num_in_flight = kind.num_steps_ahead
        assert known == [False] * num_in_flight + [True] * (12 - num_in_flight)


def test_blocks_of_ended_requests_are_released_though_these_had_ended_before_the_waking(
    endpoint: str,
) -> None:
    scheduler = Scheduler()
    scheduler.connector = object()
    ended, other = Request("ended-00000000", SHARED, 1), Request("other-00000000", SHARED[:3], 90)
    for request in (ended, other):
        request.num_preemptions = 1  # such are not loaded
        scheduler.add_request(request)
    step(scheduler)
    assert ended.is_finished()
    with viewer(scheduler, endpoint, joins_late=True) as (session, _):
        scheduler.num_updates = 0
        step_and_assert_shows(session, scheduler)
        (seq_id,) = session.state.requests["ended"].seq_ids
        assert session.state.sequences[seq_id].block_table
        scheduler._free_blocks(ended)
        step_and_assert_shows(session, scheduler, 2)
        assert "ended" in session.state.finished
