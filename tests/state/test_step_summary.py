"""The summary of a step: its figures, why it ran no more, whose sequences it ran."""

import math
from typing import Any

import pytest

from seqtop.sequence import (
    ExecuteModelRequest,
    SequenceDataDelta,
    SequenceGroupMetadataDelta,
    SequenceStage,
)
from seqtop.state import step_costs, step_summary
from seqtop.wire.messages import (
    EngineInfo,
    Step,
    StepStats,
)
from tests.support import events
from tests.support.random_engine import RandomEngine

EVENTS = list(RandomEngine(5, 60, num_blocks=24))


def info() -> EngineInfo:
    return next(event for event in EVENTS if isinstance(event, EngineInfo))


def budget() -> int:
    return info().max_num_batched_tokens


def stats(**changes: Any) -> StepStats:
    values: dict[str, Any] = {
        "num_running": 1, "num_waiting": 0, "num_used_blocks": 2, "num_free_blocks": 20,
        "num_cached_blocks": 2, "num_prefill_tokens": 0, "num_decode_tokens": 1,
        "prefix_cache_queries": 0, "prefix_cache_hits": 0, "num_preemptions": 0,
        "scheduler_time": 0.25, "model_forward_time": 0.5, "model_execute_time": 0.5,
    }  # fmt: skip
    return events.stats(**(values | changes))


def a_step(figures: StepStats, **changes: Any) -> Step:
    values = {"start_time": 10.0, "time": 11.0, "stats": figures}
    return events.step(changes.pop("step", 7), **(values | changes))


def test_figures_are_those_of_the_step() -> None:
    kinds = set()
    for step in (event for event in EVENTS if isinstance(event, Step)):
        found = step_summary.summarize(step)
        groups = step.execute.seq_group_metadata_list
        assert len(found.chunks) + found.num_decodes >= len(groups)
        assert found.num_tokens == step.stats.num_prefill_tokens + step.stats.num_decode_tokens
        assert found.num_preemptions == len(step.preemptions)
        assert found.num_swapped_out == len(step.execute.blocks_to_swap_out)
        assert found.num_swapped_in == len(step.execute.blocks_to_swap_in)
        kinds |= {bool(found.chunks), -bool(found.num_decodes), 2 * bool(found.num_preemptions)}
    assert {True, -1, 2} <= kinds


def test_each_sequence_of_a_request_counts() -> None:
    """As it does against the engine's limit of sequences."""
    beams = SequenceGroupMetadataDelta(
        seq_data_delta={
            seq_id: SequenceDataDelta([], 0.0, 0, SequenceStage.DECODE) for seq_id in range(3)
        },
        request_id="beams",
        block_tables={},
        is_prompt=False,
    )
    prompts = SequenceGroupMetadataDelta(
        seq_data_delta=beams.seq_data_delta,
        request_id="again",
        block_tables={},
        is_prompt=True,
        token_chunk_size=5,
    )
    first = {0: SequenceDataDelta([], 0.0, 0, SequenceStage.PREFILL)}
    unsized = SequenceGroupMetadataDelta(first, "unsized", {}, is_prompt=True)
    found = step_summary.summarize(
        a_step(
            stats(),
            execute=ExecuteModelRequest([beams, prompts, unsized], blocks_to_copy=[(1, 2), (1, 3)]),
        )
    )
    assert found.num_decodes == 3
    assert found.chunks == (5, 5, 5, 1)
    assert found.num_copied == 2


def test_the_parts_of_a_step_add_up_to_the_time_since_the_step_before() -> None:
    figures = stats(model_execute_time=0.625)
    found = step_summary.summarize(a_step(figures), gap=2.0)
    assert found.parts == {
        "scheduler": 0.25, "forward": 0.5, "execute": 0.125, "rest": 0.125, "host": 2.0,
        "paced": 0.0,
    }  # fmt: skip
    assert sum(found.parts.values()) == found.period == 3.0
    figures.paced_time = 1.5
    paced = step_summary.summarize(a_step(figures), gap=2.0)
    assert (paced.parts["host"], paced.parts["paced"]) == (0.5, 1.5)
    shorter = step_summary.summarize(a_step(figures), gap=1.0)
    assert (shorter.parts["host"], shorter.parts["paced"]) == (0.0, 1.0)
    idle = step_summary.summarize(a_step(figures), gap=2.0, was_idle=True)
    assert idle.parts["idle"] == 2.0
    assert "host" not in idle.parts


def test_parts_that_are_not_reported_are_missing() -> None:
    unknown = stats(model_execute_time=None, model_forward_time=None)
    assert step_costs.time_parts(unknown, 1.0) == {"scheduler": 0.25}
    without_forward = stats(model_forward_time=None)
    parts = step_costs.time_parts(without_forward, 1.0)
    assert parts == {"scheduler": 0.25, "execute": 0.5, "rest": 0.25}
    too_long = step_costs.time_parts(stats(model_execute_time=9.0), 1.0)
    assert sum(too_long.values()) == 1.0
    backwards = step_costs.time_parts(stats(), -1.0)
    assert backwards == {"scheduler": 0.0, "forward": 0.0, "execute": 0.0, "rest": 0.0}
    broken = stats(scheduler_time=math.nan, model_forward_time=-0.5)
    assert step_costs.time_parts(broken, 2.0) == {
        "scheduler": 0.0, "forward": 0.0, "execute": 1.0, "rest": 1.0
    }  # fmt: skip


def test_a_step_without_a_known_gap_takes_its_duration() -> None:
    found = step_summary.summarize(a_step(stats()))
    assert (found.duration, found.period) == (1.0, 1.0)
    assert "host" not in found.parts
    assert "idle" not in found.parts
    backwards = step_summary.summarize(a_step(stats(), start_time=12.0))
    assert (backwards.duration, backwards.period) == (0.0, 0.0)


@pytest.mark.parametrize("name", ["num_running", "num_waiting", "num_swapped"])
def test_an_unfinished_request_is_work(name: str) -> None:
    nothing = {"num_running": 0, "num_waiting": 0, "num_swapped": 0}
    assert step_costs.has_work(stats(**nothing | {name: 1}))
    assert not step_costs.has_work(stats(**nothing))
    assert not step_costs.has_work(stats(**nothing | {"num_swapped": None}))


@pytest.mark.parametrize(
    ("expected", "figures", "changes"),
    [
        ("nothing waits", {}, {}),
        ("3 wait, no reason given", {"num_waiting": 3}, {}),
        ("token budget", {"num_waiting": 3, "num_prefill_tokens": 100_000}, {}),
        ("token budget", {"num_waiting": 3, "num_prefill_tokens": budget() - 1}, {}),
        (
            "3 wait, no reason given",
            {"num_waiting": 3, "num_prefill_tokens": budget() - 2},
            {},
        ),
        (
            "no free blocks: preempted",
            {"num_waiting": 1},
            {"preemptions": [events.preemption("a", lost=5)]},
        ),
        (
            "no free blocks: 3 missing",
            {"num_waiting": 1},
            {"wait_reasons": [events.wait_reason("a", "no_blocks", 3)]},
        ),
        (
            "token budget: 88 missing",
            {},
            {"wait_reasons": [events.wait_reason("a", "token_budget", 88)]},
        ),
        (
            f"max_num_seqs: {info().max_num_seqs}",
            {},
            {"wait_reasons": [events.wait_reason("a", "seq_limit")]},
        ),
        (
            "no free blocks",
            {},
            {"wait_reasons": [events.wait_reason("a", "no_blocks", -1)]},
        ),
        ("max_loras", {}, {"wait_reasons": [events.wait_reason("a", "lora_slots")]}),
        ("paused", {}, {"wait_reasons": [events.wait_reason("a", "paused")]}),
        ("no reason given", {}, {"wait_reasons": [events.wait_reason("a", "unknown")]}),
    ],
)
def test_the_reason_why_a_step_ran_no_more(
    expected: str, figures: dict[str, Any], changes: dict[str, Any]
) -> None:
    summary = step_summary.summarize(a_step(stats(**figures), **changes))
    assert step_summary.limited_by(summary, info()) == expected


def test_limits_of_an_engine_that_is_not_known_are_left_out() -> None:
    reason = events.wait_reason("a", "seq_limit")
    summary = step_summary.summarize(a_step(stats(), wait_reasons=[reason]))
    assert step_summary.limited_by(summary, None) == "max_num_seqs"
    assert step_summary.describe_wait(reason, None) == (
        "a waits: max_num_seqs sequences are running."
    )
    spent = step_summary.summarize(a_step(stats(num_prefill_tokens=100_000)))
    assert step_summary.limited_by(spent, None) == "nothing waits"


def test_a_preemption_is_told_in_a_sentence() -> None:
    preemptions = (
        events.preemption("a", lost=1, by="b"),
        events.preemption("a", lost=1, by="a"),
        events.preemption("a", mode="swap"),
        events.preemption("a", mode="swap", by="b"),
    )
    assert [*map(step_summary.describe_preemption, preemptions)] == [
        "a was preempted to make room for b; 1 computed token will be recomputed.",
        "a was preempted because no blocks were free for it; 1 computed token will be recomputed.",
        "a was swapped out; nothing is lost.",
        "a was swapped out to make room for b; nothing is lost.",
    ]


def test_a_wait_in_a_sentence() -> None:
    reason = events.wait_reason("a", "seq_limit", 2)
    assert step_summary.describe_wait(reason, info()) == (
        f"a waits: max_num_seqs ({info().max_num_seqs}) sequences are running;"
        " 2 more sequence slots needed."
    )


def test_the_time_in_which_the_step_before_ran_is_no_part_of_a_step() -> None:
    found = step_summary.summarize(a_step(stats(model_execute_time=0.625)), gap=-0.0625)
    assert found.overlap == 0.0625
    assert sum(found.parts.values()) == found.period == 0.9375
