"""Rules about scheduling: each finds a run that is broken in just its way."""

from collections.abc import Callable

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.wire.messages import EngineInfo, Event, Step
from tests.support.events import (
    arrival,
    delta,
    engine_info,
    preemption,
    stats,
    step,
    update,
)
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
            figures = event.stats
            figures.num_cached_blocks = figures.num_free_blocks - num_free
            figures.num_free_blocks = num_free
    assert ("wait-reason" in {finding.rule for finding in check(run)}) is is_false


@pytest.mark.parametrize(("num_free", "is_false"), [(33, False), (34, True)])
def test_blocks_of_the_reserve_are_not_available(num_free: int, is_false: bool) -> None:
    """It needs two blocks, and 32 of 64 are to stay free."""
    run: list[Event] = []
    wait_for_free_blocks(run)
    info, *_ = run
    assert isinstance(info, EngineInfo)
    info.scheduler_settings = {"watermark": 0.5}
    for event in run:
        if isinstance(event, Step):
            event.stats.num_free_blocks = num_free
    found = [finding.message for finding in check(run) if finding.rule == "wait-reason"]
    assert bool(found) is is_false
    assert all("34 blocks are available, and it needs at most 34" in own for own in found)


@pytest.mark.parametrize(
    ("num_computed", "messages"),
    [
        (2, ["2 tokens were computed, those of its 1 sequences are 3 to 4"]),
        (3, []),
        (4, []),
        (5, ["5 tokens were computed, those of its 1 sequences are 3 to 4"]),
    ],
)
def test_rejected_drafts_may_be_counted_as_computed(num_computed: int, messages: list[str]) -> None:
    running = SequenceStatus.RUNNING
    prefill = update(1, running, 3, blocks=[0])
    decode = update(1, running, 6, tokens=[5, 6, 7], drafted=3, accepted=2)
    run: list[Event] = [
        engine_info(),
        arrival(1),
        step(0, sequences=[prefill], stats=stats(num_prefill_tokens=3)),
        step(
            1,
            delta("req-1", 1, computed=3),
            sequences=[decode],
            stats=stats(num_decode_tokens=num_computed),
        ),
    ]
    found = [finding.message for finding in check(run) if finding.rule == "token-sum"]
    assert found == messages


@pytest.mark.parametrize(
    ("served", "is_found"), [("req-1", False), ("req-2", True), ("req-9", False), (None, False)]
)
def test_a_request_is_preempted_only_for_one_of_its_priority_or_a_higher_one(
    served: str | None, is_found: bool
) -> None:
    first, second = arrival(1), arrival(2)
    second.priority = 1
    lost = [preemption("req-1", by=served), preemption("req-9", by="req-1")]
    run: list[Event] = [engine_info(queue_order="priority"), first, second]
    found = check([*run, step(0, preemptions=lost)])
    assert [own.message for own in found if own.rule == "priority-inversion"] == [
        "its priority is 0, that of req-2, which got its blocks, is 1; the lowest number is first"
    ] * is_found
