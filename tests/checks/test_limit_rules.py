"""Rules with limits: what each finds and names, and what it lets pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from seqtop.checks.thresholds import Thresholds
from seqtop.sequence import SequenceStatus
from seqtop.state.wait_causes import cause_in_words
from seqtop.wire.messages import Event
from tests.support import field_cases
from tests.support.events import arrival, engine_info, preemption, stats, step, update
from tests.support.mutants import FIGURE_MUTANTS, LIMIT_MUTANTS, assert_found, check
from tests.support.simulated_scheduler import REMOTE, SimulatedScheduler


@pytest.mark.parametrize(("rule", "mutate"), [*FIGURE_MUTANTS, *LIMIT_MUTANTS])
def test_mutant_is_found_by_its_rule_alone(
    payloads: list[bytes], rule: str, mutate: Callable[[Any], None]
) -> None:
    assert_found(payloads, rule, mutate)


@pytest.mark.parametrize(
    ("status", "limit", "words"),
    [
        (REMOTE, "load_seconds", "a KV connector is loading its KV cache"),
        ("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "grammar_seconds", "grammar is being compiled"),
        ("GRAMMAR_QUEUE", "grammar_seconds", "GRAMMAR_QUEUE"),
        ("WAITING_FOR_STREAMING_REQ", "input_seconds", "has no more input"),
        ("DECODE_PREALLOC_QUEUE", "load_seconds", "DECODE_PREALLOC_QUEUE"),
        ("WAITING_FOR_ENCODER", "encoder_seconds", "WAITING_FOR_ENCODER"),
        ("OF_ITS_OWN", "other_seconds", "OF_ITS_OWN"),
    ],
)
def test_each_kind_of_wait_has_a_limit_of_its_own(status: str, limit: str, words: str) -> None:
    run = SimulatedScheduler()
    run.add("waits", 60, 10, status=status)
    run.idle(8)
    assert check(run.events, thresholds=Thresholds(**{limit: 9})) == []
    (finding,) = check(run.events, thresholds=Thresholds(**{limit: 7}))
    assert (finding.rule, finding.request_id) == ("wait-limit", "waits")
    assert words in finding.message
    assert finding.message.startswith("for 7.0 s, ")


def test_each_kind_of_wait_has_a_sentence_of_its_own() -> None:
    statuses: tuple[str, ...] = (
        REMOTE,
        "WAITING_FOR_STREAMING_REQ",
        "GRAMMAR_QUEUE",
        "PREFILL_BOOTSTRAP_QUEUE",
    )
    statuses += ("PREFILL_INFLIGHT_QUEUE", "DECODE_PREALLOC_QUEUE", "DECODE_TRANSFER_QUEUE")
    statuses += ("DECODE_RETRACTED_QUEUE", "WAITING_FOR_ENCODER", "LORA_LOADING")
    unnamed = cause_in_words("OF_ITS_OWN").sentence
    assert unnamed not in {cause_in_words(status).sentence for status in statuses}


def test_prompts_are_counted_once() -> None:
    """A publisher that announces an id again has not more prompts."""
    run = SimulatedScheduler(block_size=256, enable_prefix_caching=True)
    for _ in range(30):
        run.add("again", 100, 2)
    assert not [own for own in check(run.events) if own.rule == "cache-in-vain"]


@pytest.mark.parametrize(("block_size", "is_found"), [(1, False), (2, True)])
def test_no_prompt_is_shorter_than_a_block_of_one_token(block_size: int, *, is_found: bool) -> None:
    run = SimulatedScheduler(block_size=block_size, enable_prefix_caching=True)
    for number in range(30):
        run.add(f"r{number}", block_size, 2)
    assert is_found is ("cache-in-vain" in {own.rule for own in check(run.events)})


def test_a_wait_that_changes_its_kind_begins_again() -> None:
    run = SimulatedScheduler()
    request = run.add("waits", 60, 10, status=REMOTE)
    for status in (REMOTE, "GRAMMAR_QUEUE") * 6:
        run.park(request, status)
        run.step(gap=5.0)
    assert check(run.events) == []


def test_blocks_that_are_released_within_the_limit_are_not_reported() -> None:
    assert check(field_cases.ended_requests_free_blocks()) == []


def test_tables_end_with_the_request_at_the_latest() -> None:
    """A publisher that frees in the step of the end and sends no empty table is no leak."""
    run = SimulatedScheduler()
    for number in range(12):
        run.add(f"r{number}", 40, 5)
        run.steps(4)
    run.run_out()
    for event in run.events:
        for own in getattr(event, "sequences", ()):
            if own.block_table == []:
                own.block_table = None
    assert check(run.events) == []


def test_healthy_window_of_a_second_group() -> None:
    assert check(field_cases.window_table(is_stale=False)) == []


@pytest.mark.parametrize(("accepted", "is_found"), [(None, False), (2, False), (3, True)])
def test_no_more_tokens_are_accepted_than_were_drafted(
    accepted: int | None, is_found: bool
) -> None:
    decodes = update(1, SequenceStatus.RUNNING, 3, drafted=2, accepted=accepted)
    found = check([engine_info(), arrival(1), step(0, sequences=[decodes])])
    messages = [own.message for own in found if own.rule == "impossible-figure"]
    assert messages == ["num_accepted_tokens is 3 of 2 num_draft_tokens"] * is_found


@pytest.mark.parametrize("num_lost", [24, 25])
def test_a_quarter_of_all_tokens_computed_again_is_much(num_lost: int) -> None:
    """The first step ends a window, and the tenth after it the next one."""
    run: list[Event] = [engine_info(), arrival(1)]
    losses = [0, 3, 3, 3, 3, 3, 3, 3, num_lost - 21]
    for number in range(11):
        lost = [preemption("req-1", lost=own) for own in losses[number : number + 1] if number]
        run.append(step(number, stats=stats(num_prefill_tokens=10), preemptions=lost))
    found = [own.message for own in check(run) if own.rule == "recomputes"]
    message = (
        "25% of 100 tokens in 10.0 s replace 25 that 8 preemptions lost: more requests run than the"
        " pool has blocks for"
    )
    assert found == [message] * (num_lost == 25)


@pytest.mark.parametrize("num_empty", [31, 32])
def test_half_of_the_steps_without_a_token_are_as_many_as_the_limit(num_empty: int) -> None:
    limits = Thresholds(empty_share=0.5, window_seconds=16.0, no_progress_steps=64)
    run: list[Event] = [engine_info(), arrival(1)]
    for number in range(65):
        is_empty = 0 < number <= num_empty
        figures = stats(num_waiting=1, num_prefill_tokens=0 if is_empty else 10)
        times = {"start_time": 100 + number / 4, "time": 100 + (number + 1) / 4}
        run.append(step(number, stats=figures, **times))
    found = [own.message for own in check(run, thresholds=limits) if own.rule == "empty-steps"]
    message = (
        "32 of 64 steps in 16.0 s computed nothing, 50% of the time, with 1 waiting at the end"
    )
    assert found == [message] * (num_empty == 32)


def test_those_of_lower_priority_are_named() -> None:
    (finding,) = check(field_cases.priority_waits())
    assert finding.message.endswith(
        "while 4 requests of priority 10 run (batch0, batch1, batch2, batch3); the lowest number is"
        " first"
    )
