"""Rules about blocks: each finds a run that is broken in just its way."""

from collections.abc import Callable
from typing import Any

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import CachedBlocks, EngineInfo, Event
from tests.support import events as builders
from tests.support.events import update
from tests.support.mutants import (
    BLOCK_MUTANTS,
    assert_found,
    check,
    events,
    in_blocks_of_four,
    leak,
    preempt_in_vain,
    share_a_block,
)


@pytest.mark.parametrize(("rule", "mutate"), BLOCK_MUTANTS)
def test_mutant_is_found_by_its_rule_alone(
    payloads: list[bytes], rule: str, mutate: Callable[[list[Event]], None]
) -> None:
    assert_found(payloads, rule, mutate)


@pytest.mark.parametrize(
    ("is_ahead", "num_computed", "is_false"),
    [
        (False, (8, 8), False),
        (False, (3, 8), True),
        (True, (3, 8), False),  # admitted while the step with the block was computed
        (True, (3, 3), True),  # nobody has computed the block, or will before
    ],
)
def test_a_step_may_add_computed_blocks_and_then_admit_a_sequence_that_hits_them(
    is_ahead: bool, num_computed: tuple[int, int], is_false: bool
) -> None:
    before, after = num_computed
    run: list[Event] = []
    in_blocks_of_four(run, 8, 5)
    running = SequenceStatus.RUNNING
    writer = update(1, running, before, blocks=[0, 1])
    hit = update(2, running, 5, cached=4, blocks=[0, 2])
    first = update(1, computed=after)
    batch = [] if is_ahead else [builders.delta("req-2", 2, computed=4, token_chunk_size=1)]
    cached = CachedBlocks(request_id="req-1", seq_id=1, position=0, blocks=[0])
    run += [
        builders.step(0, sequences=[writer], newly_cached_blocks=[]),
        builders.step(1, *batch, sequences=[first, hit], newly_cached_blocks=[cached]),
    ]
    found = [finding.rule for finding in check(run) if "hit" in finding.rule]
    assert ("hit-not-cached" in found) is is_false, found


@pytest.mark.parametrize(("different", "is_found"), [(None, False), (3, True), (0, True)])
def test_one_different_token_is_enough_not_to_share_a_block(
    different: int | None, is_found: bool
) -> None:
    run: list[Any] = []
    share_a_block(run, 4)
    prompt = [*range(4)]
    if different is not None:
        prompt[different] = 9
    run[2].prompt_token_ids = Ints.of(prompt)
    found = [finding.message for finding in check(run) if finding.rule == "block-shared"]
    assert found == [
        f"block 0 is also position 0 of sequence {other}, whose tokens differ; only equal prefixes"
        " may share"
        for other in ((2, 1) if is_found else ())
    ]


def test_a_preemption_of_an_unknown_request_gains_nothing_to_report() -> None:
    run: list[Any] = []
    preempt_in_vain(run)
    run[-1].preemptions.insert(0, builders.preemption("req-9"))
    gains_nothing = [own for own in check(run) if own.rule == "preempt-gains-nothing"]
    assert [(own.request_id, own.message) for own in gains_nothing] == [
        ("req-2", "it held 1 block, all of which others hold too: 1 request, such as req-1")
    ]


@pytest.mark.parametrize(
    ("swapped_in", "messages"),
    [(5, []), (6, ["swap in of host block 6, which no sequence holds there"])],
)
@pytest.mark.parametrize("is_same_step", [False, True])
def test_a_block_comes_back_from_where_it_was_swapped_to(
    is_same_step: bool, swapped_in: int, messages: list[str]
) -> None:
    run: list[Any] = []
    in_blocks_of_four(run, 4)
    run[0].num_cpu_blocks = 8
    running = builders.update(1, SequenceStatus.RUNNING, 4, blocks=[0])
    swapped = builders.update(1, SequenceStatus.SWAPPED, table=[])
    back = builders.update(1, SequenceStatus.RUNNING, table=[0])
    preempted = [builders.preemption("req-1", mode="swap")]
    out = builders.step(1, sequences=[swapped], preemptions=preempted)
    out.execute.blocks_to_swap_out.append((0, 5))
    again = out if is_same_step else builders.step(2, sequences=[back])
    again.execute.blocks_to_swap_in.append((swapped_in, 0))
    run += [builders.step(0, sequences=[running]), out, again][: 2 if is_same_step else 3]
    assert [own.message for own in check(run) if own.rule == "swap-map"] == messages


def test_a_leak_is_not_looked_for_where_the_engine_uses_blocks_for_itself(
    payloads: list[bytes],
) -> None:
    run = events(payloads)
    leak(run)
    (info,) = (event for event in run if isinstance(event, EngineInfo))
    info.not_available["blocks_of_requests"] = "it copies some"
    assert "block-leak" not in {finding.rule for finding in check(run)}
