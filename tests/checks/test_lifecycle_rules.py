"""Rules about the lifecycle of sequences: each finds a run that is broken in just its way."""

from collections.abc import Callable
from typing import Any

import pytest

from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.wire.messages import Event, RequestFinished
from tests.support.events import arrival, delta, engine_info, preemption, step, update
from tests.support.mutants import LIFECYCLE_MUTANTS, assert_found, check

WAITING, RUNNING = SequenceStatus.WAITING, SequenceStatus.RUNNING
ABORTED = SequenceStatus.FINISHED_ABORTED


@pytest.mark.parametrize(("rule", "mutate"), LIFECYCLE_MUTANTS)
def test_mutant_is_found_by_its_rule_alone(
    payloads: list[bytes], rule: str, mutate: Callable[[list[Event]], None]
) -> None:
    assert_found(payloads, rule, mutate)


def computed(*events: Event, **settings: Any) -> list[tuple[str, str]]:
    """Returns the findings of a request whose prompt was computed by the first of two steps."""
    first = step(0, sequences=[update(1, RUNNING, 3, blocks=[0])])
    run: list[Event] = [engine_info(**settings), arrival(1), first, *events]
    of_figures = {"block-leak", "pool-sum", "wait-reason"}
    return [(own.rule, own.message) for own in check(run) if own.rule not in of_figures]


@pytest.mark.parametrize(("ended_at", "rules"), [(101.5, []), (101.0, ["late-token"])])
def test_a_request_may_end_while_its_step_is_in_flight(ended_at: float, rules: list[str]) -> None:
    metrics = RequestMetrics(1.0, 100.5, 100.0, 100.5, 99.0, ended_at)
    ended = RequestFinished("req-1", ended_at, ABORTED, metrics)
    runs_on = step(1, delta("req-1", 1, computed=3))
    found = computed(ended, runs_on)
    assert [rule for rule, _ in found if rule == "late-token"] == rules


@pytest.mark.parametrize(
    ("before", "after", "is_found"),
    [
        ("", "", True),
        ("WAITING_FOR_REMOTE_KVS", "", False),
        ("", "FINISHED_ERROR", False),
    ],
)
def test_a_failed_load_takes_computed_tokens_back(before: str, after: str, is_found: bool) -> None:
    loads, fails = update(1, computed=3), update(1, computed=1)
    loads.engine_status, fails.engine_status = before, after
    found = computed(step(1, sequences=[loads]), step(2, sequences=[fails]))
    message = "computed tokens went from 3 back to 1 without a preemption"
    assert (("computed-back", message) in found) is is_found


def test_a_ring_of_blocks_may_be_shorter_than_its_tokens() -> None:
    grows = update(1, RUNNING, 20, tokens=[5] * 20)
    specs = [{"kind": "ring", "has_positions": False}]
    assert computed(step(1, sequences=[grows])) == [
        ("table-short", "20 computed tokens need 2 blocks, the table has 1")
    ]
    assert computed(step(1, sequences=[grows]), kv_cache_specs=specs) == []


def test_a_step_may_swap_out_what_it_admits_only_with_a_preemption() -> None:
    swapped = step(1, sequences=[update(2, SequenceStatus.SWAPPED)])
    assert computed(arrival(2), swapped) == [
        ("transition", "WAITING became SWAPPED without a preemption")
    ]
    swapped.preemptions = [preemption("req-2", mode="swap")]
    assert "transition" not in dict(computed(arrival(2), swapped))


def test_only_the_first_token_beyond_a_limit_is_reported() -> None:
    limited = [step(number, sequences=[update(1, tokens=[5])]) for number in range(1, 4)]
    assert computed(*limited, max_model_len=4) == [("max-tokens", "5 tokens, max_model_len is 4")]


@pytest.mark.parametrize(
    ("sent", "messages"),
    [
        ([5], []),
        ([6], ["the metadata appends 1 (6), the updates have 1 (5)"]),
        ([5, 5], ["the metadata appends 2 (5, 5), the updates have 1 (5)"]),
    ],
)
def test_the_metadata_appends_the_tokens_of_the_updates(
    sent: list[int], messages: list[str]
) -> None:
    decodes = step(1, sequences=[update(1, computed=4, tokens=[5])])
    found = computed(decodes, step(2, delta("req-1", 1, computed=4, tokens=sent)))
    assert [message for rule, message in found if rule == "output-differs"] == messages
