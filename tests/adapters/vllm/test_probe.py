"""Schedulers that lack attributes: what is then not available, or not observed at all."""

from collections.abc import Callable

import pytest

from seqtop.adapters.attachment import UnsupportedEngineError
from seqtop.adapters.vllm import hook
from seqtop.adapters.vllm.probe import probe
from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.export import text
from seqtop.live.session import Session
from seqtop.state.listener import StateChange
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher_settings import PublisherSettings
from seqtop.wire import parsing
from tests.adapters.test_step_builder import catch_up
from tests.support.fake_vllm import BlockPool, Request, Scheduler, step
from tests.support.waiting import SECONDS


def without_pool_method(scheduler: Scheduler) -> None:
    # Of this instance alone: its class has no such method.
    methods = {name: method for name, method in vars(BlockPool).items() if name != "touch"}
    scheduler.pool.__class__ = type("BlockPool", (), methods)


def without_hashes(scheduler: Scheduler) -> None:
    del scheduler.pool.hash_block_size


_NO_LIMITS = "the scheduler has no scheduler_config"


def without_limits(scheduler: Scheduler) -> None:
    del scheduler.scheduler_config


@pytest.mark.parametrize(
    ("remove", "reasons"),
    [
        (lambda _: None, {}),
        (without_limits, dict.fromkeys(("why", "harm"), _NO_LIMITS)),
        (
            without_pool_method,
            {
                "cached_blocks": "the scheduler has no kv_cache_manager.block_pool.touch",
                "prefix_misses": "the scheduler has no kv_cache_manager.block_pool.touch",
            },
        ),
        (
            without_hashes,
            {"prefix_misses": "the scheduler has no kv_cache_manager.block_pool.hash_block_size"},
        ),
    ],
)
def test_a_missing_attribute_takes_its_columns_alone(
    remove: Callable[[Scheduler], None], reasons: dict[str, str]
) -> None:
    scheduler = Scheduler()
    remove(scheduler)
    assert probe(scheduler) == reasons


def test_a_required_attribute_is_named() -> None:
    scheduler = Scheduler()
    del scheduler.requests
    with pytest.raises(UnsupportedEngineError, match=r"^vLLM 0\.33\.0 .* no requests$"):
        probe(scheduler)


def test_rows_are_true_without_a_reason_to_wait(endpoint: str) -> None:
    scheduler = Scheduler(max_num_seqs=1)
    without_limits(scheduler)
    findings: list[Finding] = []
    checker = Checker()

    def note(change: StateChange) -> None:
        if change.event is not None:
            findings.extend(checker.apply(parsing.event(change.payload)))
        elif change.state.info is not None:
            checker.apply(change.state.info)

    assert hook.follow(scheduler, PublisherSettings(bind=endpoint)) is not None
    session = Session(endpoint)
    session.add_listener(note)
    with session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        for name in "ab":
            scheduler.add_request(Request(f"{name}-00000000", [1, 2, 3], 4))
        step(scheduler)
        catch_up(session, scheduler)
        with session.lock:
            state = session.state
            assert state.info is not None
            assert state.info.not_available == dict.fromkeys(("why", "harm"), _NO_LIMITS)
            assert state.wait_reason_ids == ["b"]
            reason = state.requests["b"].wait_reason
            assert reason is not None
            assert reason.cause == "unknown"
            rows = text.table(state, columns=["id", "out", "why"]).splitlines()
        assert [row.split() for row in rows] == [
            ["Id", "Out", "Why"],
            ["a", "1", "n/a"],
            ["b", "0", "n/a"],
        ]
    scheduler.shutdown()
    assert findings == []


def test_free_blocks_include_the_cached_ones_that_are_not_counted(endpoint: str) -> None:
    scheduler = Scheduler()
    del scheduler.pool.hash_block_size
    methods = {n: method for n, method in vars(BlockPool).items() if n != "reset_prefix_cache"}
    scheduler.pool.__class__ = type("BlockPool", (), methods)
    assert hook.follow(scheduler, PublisherSettings(bind=endpoint)) is not None
    with Session(endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        scheduler.add_request(Request("one-00000000", list(range(12)), 3))
        while scheduler.requests:
            step(scheduler)
            catch_up(session, scheduler)
        stats = session.state.stats
        assert stats is not None
        assert scheduler.pool.by_hash, "blocks are cached"
        assert stats.num_cached_blocks is None
        assert stats.num_free_blocks == scheduler.pool.get_num_free_blocks()
    scheduler.shutdown()
