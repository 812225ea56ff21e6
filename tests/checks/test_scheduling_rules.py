"""Rules about scheduling: each finds a run that is broken in just its way."""

from collections.abc import Callable

import pytest

from seqtop.wire.messages import EngineInfo, Event, Step
from tests.support.mutants import SCHEDULING_MUTANTS, assert_found, check, wait_for_free_blocks


@pytest.mark.parametrize(("rule", "mutate"), SCHEDULING_MUTANTS)
def test_mutant_is_found_by_its_rule_alone(
    payloads: list[bytes], rule: str, mutate: Callable[[list[Event]], None]
) -> None:
    assert_found(payloads, rule, mutate)


@pytest.mark.parametrize(
    ("num_free", "evicts", "is_false"),
    [
        (0, True, True),
        (0, False, False),  # no cached block is evicted for a request that waits
        (40, False, True),
    ],
)
def test_cached_blocks_are_available_where_they_are_evicted_for_waiting_requests(
    num_free: int, evicts: bool, is_false: bool
) -> None:
    run: list[Event] = []
    wait_for_free_blocks(run)
    info, *_ = run
    assert isinstance(info, EngineInfo)
    info.scheduler_settings = {} if evicts else {"evicts_for_waiting_requests": False}
    for event in run:
        if isinstance(event, Step) and event.stats is not None:
            stats = event.stats
            stats.num_cached_blocks = stats.num_free_blocks - num_free
            stats.num_free_blocks = num_free
    assert ("wait-reason" in {finding.rule for finding in check(run)}) is is_false
