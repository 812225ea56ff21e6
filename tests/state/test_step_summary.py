"""What is said of a step: its figures, why it ran no more, whose sequences it ran."""

import math
from typing import Any

import msgspec
import pytest

from seqtop.sequence import (
    ExecuteModelRequest,
    SequenceDataDelta,
    SequenceGroupMetadataDelta,
    SequenceStage,
    SequenceStatus,
)
from seqtop.state import EngineState, step_summary
from seqtop.state.step_summary import Member
from seqtop.wire.decode_rows import num_decodes
from seqtop.wire.messages import (
    Decodes,
    EngineInfo,
    Preemption,
    SequenceUpdate,
    Step,
    StepStats,
    WaitReason,
)
from tests.support.event_script import EventScript
from tests.support.reducer_events import prefilled, update

EVENTS = list(EventScript(5, 60, num_blocks=24))


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
    return StepStats(**(values | changes))


def a_step(figures: StepStats, **changes: Any) -> Step:
    values: dict[str, Any] = {
        "step": 7, "start_time": 10.0, "time": 11.0, "execute": ExecuteModelRequest([]),
        "sequences": [],
    }  # fmt: skip
    return Step(stats=figures, **(values | changes))


def test_figures_are_those_of_the_step() -> None:
    kinds = set()
    for step in (event for event in EVENTS if isinstance(event, Step)):
        found = step_summary.summarize(step)
        groups = step.execute.seq_group_metadata_list
        assert len(found.chunks) + found.num_decodes >= len(groups) + num_decodes(step)
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
    unnamed = SequenceGroupMetadataDelta({}, "alone", {}, is_prompt=False)
    unsized = SequenceGroupMetadataDelta({}, "unsized", {}, is_prompt=True)
    found = step_summary.summarize(
        a_step(
            stats(),
            execute=ExecuteModelRequest(
                [beams, prompts, unnamed, unsized], blocks_to_copy=[(1, 2), (1, 3)]
            ),
        )
    )
    assert found.num_decodes == 3 + 1
    assert found.chunks == (5, 5, 5, 1)
    assert found.num_copied == 2


def test_the_parts_of_a_step_add_up_to_the_time_since_the_step_before() -> None:
    figures = stats(model_execute_time=0.625)
    found = step_summary.summarize(a_step(figures), gap=2.0)
    assert found.parts == {
        "scheduler": 0.25, "forward": 0.5, "execute": 0.125, "rest": 0.125, "host": 2.0
    }  # fmt: skip
    assert sum(found.parts.values()) == found.period == 3.0
    idle = step_summary.summarize(a_step(figures), gap=2.0, was_idle=True)
    assert idle.parts["idle"] == 2.0
    assert "host" not in idle.parts


def test_parts_that_are_not_reported_are_missing() -> None:
    unknown = stats(model_execute_time=None, model_forward_time=None)
    assert step_summary.time_parts(unknown, 1.0) == {"scheduler": 0.25}
    without_forward = stats(model_forward_time=None)
    parts = step_summary.time_parts(without_forward, 1.0)
    assert parts == {"scheduler": 0.25, "execute": 0.5, "rest": 0.25}
    too_long = step_summary.time_parts(stats(model_execute_time=9.0), 1.0)
    assert sum(too_long.values()) == 1.0
    backwards = step_summary.time_parts(stats(), -1.0)
    assert backwards == {"scheduler": 0.0, "forward": 0.0, "execute": 0.0, "rest": 0.0}
    broken = stats(scheduler_time=math.nan, model_forward_time=-0.5)
    assert step_summary.time_parts(broken, 2.0) == {
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
    assert step_summary.has_work(stats(**nothing | {name: 1}))
    assert not step_summary.has_work(stats(**nothing))
    assert not step_summary.has_work(stats(**nothing | {"num_swapped": None}))


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
            {"preemptions": [Preemption(request_id="a", mode="recompute", num_lost_tokens=5)]},
        ),
        (
            "no free blocks: 3 missing",
            {"num_waiting": 1},
            {"wait_reasons": [WaitReason(request_id="a", cause="no_blocks", num_missing=3)]},
        ),
        (
            "token budget: 88 missing",
            {},
            {"wait_reasons": [WaitReason(request_id="a", cause="token_budget", num_missing=88)]},
        ),
        (
            f"max_num_seqs: {info().max_num_seqs}",
            {},
            {"wait_reasons": [WaitReason(request_id="a", cause="seq_limit")]},
        ),
        (
            "no free blocks",
            {},
            {"wait_reasons": [WaitReason(request_id="a", cause="no_blocks", num_missing=-1)]},
        ),
        ("max_loras", {}, {"wait_reasons": [WaitReason(request_id="a", cause="lora_slots")]}),
        ("paused", {}, {"wait_reasons": [WaitReason(request_id="a", cause="paused")]}),
        ("no reason given", {}, {"wait_reasons": [WaitReason(request_id="a", cause="unknown")]}),
    ],
)
def test_why_a_step_ran_no_more(
    expected: str, figures: dict[str, Any], changes: dict[str, Any]
) -> None:
    summary = step_summary.summarize(a_step(stats(**figures), **changes))
    assert step_summary.limited_by(summary, info()) == expected


def test_limits_of_an_engine_that_is_not_known_are_left_out() -> None:
    reason = WaitReason(request_id="a", cause="seq_limit")
    summary = step_summary.summarize(a_step(stats(), wait_reasons=[reason]))
    assert step_summary.limited_by(summary, None) == "max_num_seqs"
    assert step_summary.describe_wait(reason, None) == (
        "a waits: max_num_seqs sequences are running."
    )
    spent = step_summary.summarize(a_step(stats(num_prefill_tokens=100_000)))
    assert step_summary.limited_by(spent, None) == "nothing waits"


def test_every_sequence_in_a_batch_is_a_member() -> None:
    state = EngineState()
    seen = 0
    for event in EVENTS:
        state.apply(event)
        if not isinstance(event, Step):
            continue
        found = step_summary.members(event, state)
        expected = [
            (group.request_id, seq_id)
            for group in event.execute.seq_group_metadata_list
            for seq_id in (
                group.seq_data_delta
                if isinstance(group, SequenceGroupMetadataDelta)
                else group.seq_data
            )
        ]
        in_columns = event.decodes.seq_ids if event.decodes else []
        assert [each.seq_id for each in found][len(found) - len(in_columns) :] == in_columns
        assert [(each.request_id, each.seq_id) for each in found][: len(expected)] == expected
        for member in found:
            sequence = state.sequences[member.seq_id]
            assert sequence.request_id == member.request_id
            if member.num_computed_tokens is not None:
                assert member.num_computed_tokens == sequence.num_computed_tokens
        seen += len(found)
    assert seen > 100


def test_a_member_that_nobody_knows_is_listed_all_the_same() -> None:
    update = SequenceUpdate(seq_id=9, status=SequenceStatus.RUNNING, num_computed_tokens=3)
    (member,) = step_summary.members(a_step(stats(), sequences=[update]), EngineState())
    assert (member.request_id, member.seq_id, member.num_computed_tokens) == (None, 9, 3)


def test_the_sequences_of_a_group_that_names_none_are_those_of_its_request() -> None:
    state = prefilled()
    prefill = SequenceGroupMetadataDelta({}, "a", {}, is_prompt=True, token_chunk_size=5)
    (member,) = step_summary.members(a_step(stats(), execute=ExecuteModelRequest([prefill])), state)
    assert (member.request_id, member.seq_id, member.is_prompt, member.chunk) == ("a", 1, True, 5)
    assert (member.status, member.num_computed_tokens, member.num_new_blocks) == (None, None, 0)
    unsized = SequenceGroupMetadataDelta({}, "a", {}, is_prompt=True)
    nobody = SequenceGroupMetadataDelta({}, "nobody", {}, is_prompt=True)
    told = update(1, SequenceStatus.RUNNING, 3, new_blocks=[8, 9], text_delta="x")
    (member,) = step_summary.members(
        a_step(stats(), execute=ExecuteModelRequest([unsized, nobody]), sequences=[told]), state
    )
    assert member == Member(
        "a", 1, True, 1, 0, SequenceStatus.RUNNING, 3, num_new_blocks=2, text_delta="x"
    )


def test_an_update_without_a_group_is_a_member_unless_it_left_the_batch() -> None:
    updates = [
        update(1, SequenceStatus.RUNNING, 3),
        update(2, SequenceStatus.RUNNING, 3, request_id="b"),
        update(3, SequenceStatus.WAITING, 0, request_id="c"),
        update(4, SequenceStatus.SWAPPED, 0, request_id="d"),
        update(5, SequenceStatus.FINISHED_STOPPED, 3, request_id="e"),
    ]
    found = step_summary.members(a_step(stats(), sequences=updates), prefilled())
    assert [(each.request_id, each.seq_id) for each in found] == [("a", 1), ("b", 2), ("e", 5)]
    assert {(each.is_prompt, each.chunk) for each in found} == {(False, 1)}


def test_a_member_computes_as_many_tokens_as_its_iterations_and_drafts() -> None:
    several = SequenceUpdate(
        seq_id=8, status=SequenceStatus.RUNNING, num_computed_tokens=9, new_token_ids=[1, 2, 3, 4]
    )
    drafted = SequenceUpdate(
        seq_id=9, status=SequenceStatus.RUNNING, num_computed_tokens=9, new_token_ids=[1, 2],
        num_draft_tokens=4, num_accepted_tokens=1,
    )  # fmt: skip
    step = a_step(stats(), sequences=[several, drafted])
    found = step_summary.members(step, EngineState())
    assert [(each.chunk, each.num_drafted) for each in found] == [(4, 0), (5, 4)]


def test_a_decode_in_columns_is_a_member_like_any_other() -> None:
    """And what later steps have changed about it is not told as if this one had."""
    for columns in (False, True):
        state, lines = EngineState(), []
        for event in EventScript(5, 40, columns=columns):
            state.apply(event)
            if isinstance(event, Step):
                members = step_summary.members(event, state)
                lines.append(sorted(members, key=lambda member: member.seq_id))
                last = event
        if not columns:
            rows = lines
    assert lines == rows
    decodes = Decodes(seq_ids=[1, 99], new_token_ids=[5, 6], text_deltas=["a", ""])
    known, unknown = step_summary.members(a_step(last.stats, decodes=decodes), state)[-2:]
    assert (known.num_computed_tokens, known.text_delta) == (None, "a")
    assert known.request_id == "req-1"
    assert (unknown.request_id, unknown.seq_id) == (None, 99)


def test_a_preemption_is_told_in_a_sentence() -> None:
    lost = Preemption(request_id="a", mode="recompute", num_lost_tokens=1, for_request_id="b")
    swapped = Preemption(request_id="a", mode="swap", num_lost_tokens=0)
    assert step_summary.describe_preemption(lost) == (
        "a was preempted to make room for b; 1 computed token will be recomputed."
    )
    assert step_summary.describe_preemption(swapped) == "a was swapped out; nothing is lost."
    swapped.for_request_id = "b"
    assert step_summary.describe_preemption(swapped) == (
        "a was swapped out to make room for b; nothing is lost."
    )
    itself = msgspec.structs.replace(lost, for_request_id="a")
    assert step_summary.describe_preemption(itself) == (
        "a was preempted because no blocks were free for it; 1 computed token will be recomputed."
    )


def test_a_wait_in_a_sentence() -> None:
    reason = WaitReason(request_id="a", cause="seq_limit", num_missing=2)
    assert step_summary.describe_wait(reason, info()) == (
        f"a waits: max_num_seqs ({info().max_num_seqs}) sequences are running;"
        " 2 more sequence slots needed."
    )
