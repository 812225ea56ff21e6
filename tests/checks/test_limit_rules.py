"""Rules with limits: what each finds and names, and what it lets pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from seqtop.checks.thresholds import Thresholds
from seqtop.state.wait_causes import cause_in_words
from tests.support import field_cases
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
        for update in getattr(event, "sequences", ()):
            if update.block_table == []:
                update.block_table = None
    assert check(run.events) == []


def test_healthy_window_of_a_second_group() -> None:
    assert check(field_cases.window_table(is_stale=False)) == []
