"""The values of fields."""

import math
from typing import Any

import pytest

from seqtop.sequence import RequestMetrics, SequenceStage, SequenceStatus
from seqtop.state import RequestState, SequenceState
from seqtop.state.fields import (
    DEFAULT_COLUMNS,
    FIELDS,
    PREEMPTED,
    is_stalled,
    queue_time,
    sequence_name,
    stage,
    status_word,
    status_words,
    token_rate,
    wait_word,
)
from seqtop.state.wait_causes import BEHIND
from seqtop.wire.arrays import Ints
from seqtop.wire.snapshot import WaitTimes
from tests.support.events import wait_reason

ARRIVAL = 100.0


def request(**changes: float | None) -> RequestState:
    times: dict[str, Any] = {
        "arrival_time": ARRIVAL,
        "last_token_time": ARRIVAL,
        "first_scheduled_time": None,
        "first_token_time": None,
        "time_in_queue": None,
    }
    metrics = RequestMetrics(**times | changes)
    return RequestState("req-1", metrics, [1])


def test_the_time_in_queue_grows_until_the_first_scheduling() -> None:
    waiting = SequenceState(1, "req-1")
    running = SequenceState(1, "req-1", status=SequenceStatus.RUNNING)
    field = FIELDS["queue"]
    assert field.grows is not None
    assert queue_time(request(), waiting, ARRIVAL + 3) == 3
    assert field.grows(request(), waiting)
    scheduled = request(first_scheduled_time=ARRIVAL + 2)
    assert queue_time(scheduled, running, ARRIVAL + 9) == 2
    assert not field.grows(scheduled, running)
    assert not field.grows(scheduled, waiting), "it waits again"
    assert not field.grows(request(time_in_queue=1.5), waiting)
    assert not field.grows(request(), running)
    assert queue_time(request(time_in_queue=1.5), running, ARRIVAL + 9) == 1.5
    assert queue_time(request(), running, ARRIVAL + 9) is None


def test_a_sequence_without_a_token_for_long_is_stalled() -> None:
    """For two seconds, and ten times as long as between its tokens so far."""
    running = SequenceState(1, "req-1", status=SequenceStatus.RUNNING)
    fast = request(first_token_time=ARRIVAL, last_token_time=ARRIVAL + 1)
    assert not is_stalled(fast, running, ARRIVAL + 99), "it has no token yet"
    running.output_token_ids = Ints.of([5])
    assert not is_stalled(fast, running, ARRIVAL + 3)
    assert is_stalled(fast, running, ARRIVAL + 3.1)
    running.output_token_ids = Ints.of(range(11))
    assert not is_stalled(fast, running, ARRIVAL + 3)
    assert is_stalled(fast, running, ARRIVAL + 3.1)
    slow = request(first_token_time=ARRIVAL, last_token_time=ARRIVAL + 10)
    assert not is_stalled(slow, running, ARRIVAL + 20)
    assert is_stalled(slow, running, ARRIVAL + 20.1)
    assert FIELDS["age"].value(slow, running, ARRIVAL + 12) == 2
    ages = FIELDS["age"].grows
    assert ages is not None
    assert ages(slow, running)
    running.status = SequenceStatus.WAITING
    assert not is_stalled(slow, running, ARRIVAL + 99)
    running.status = SequenceStatus.FINISHED_STOPPED
    assert FIELDS["age"].value(slow, running, ARRIVAL + 12) is None
    assert not ages(slow, running)


def test_a_sequence_that_waits_again_was_preempted() -> None:
    again = request()
    again.num_preemptions = 1
    sequence = SequenceState(1, "req-1")
    assert status_word(request(), sequence) == "waiting"
    assert status_word(again, sequence) == PREEMPTED
    sequence.status = SequenceStatus.RUNNING
    assert status_word(again, sequence) == "running"


def test_a_wait_has_a_word_for_its_cause() -> None:
    waits, sequence = request(), SequenceState(1, "req-1")
    assert wait_word(waits, sequence) == BEHIND
    waits.wait_reason = wait_reason("req-1", "no_blocks", 2)
    assert wait_word(waits, sequence) == "blocks"
    waits.wait_reason = wait_reason("req-1", "unknown")
    assert wait_word(waits, sequence) is None
    sequence.engine_status = "PREEMPTED"
    assert wait_word(waits, sequence) is None
    waits.wait = WaitTimes(total=3.0, by_cause={"no_blocks": 1.0})
    assert wait_word(waits, sequence) == "blocks"
    sequence.engine_status = "WAITING_FOR_FSM"
    assert wait_word(waits, sequence) == "waiting_for_fsm"


@pytest.mark.parametrize(
    ("total", "by_cause", "word"),
    [
        (5.0, {"seq_limit": 2.0, "no_blocks": 3.0}, "blocks"),
        (6.0, {"seq_limit": 3.0}, "seqs"),
        (60.0, {"seq_limit": 3.0}, "seqs"),
        (5.0, {"unknown": 4.0, "no_blocks": 1.0}, "blocks"),
        (5.0, {"unknown": 5.0}, None),
        (5.0, {"WAITING_FOR_FSM": 5.0}, "waiting_for_fsm"),
        (9.0, {"paced": 5.0, "seq_limit": 2.0, "arriving": 1.0, "between_steps": 1.0}, "seqs"),
        (9.0, {"paced": 5.0, "arriving": 4.0}, None),
        (5.0, {}, None),
        (0.0, {}, None),
    ],
)
def test_after_a_wait_its_word_is_the_longest_cause_that_blocked_it(
    total: float, by_cause: dict[str, float], word: str | None
) -> None:
    """However long it waited for reasons that are unknown."""
    waited = request()
    waited.wait = WaitTimes(total=total, by_cause=by_cause)
    assert wait_word(waited, SequenceState(1, "req-1", SequenceStatus.RUNNING)) == word


def test_the_time_waited_grows_while_it_waits() -> None:
    waits, sequence = request(), SequenceState(1, "req-1")
    waits.wait = WaitTimes(total=2.0)
    field = FIELDS["waited"]
    assert field.grows is not None
    assert field.value(waits, sequence, ARRIVAL + 5) == 2.0
    assert not field.grows(waits, sequence)
    waits.wait = WaitTimes(total=2.0, since=ARRIVAL + 1)
    assert field.value(waits, sequence, ARRIVAL + 5) == 6.0
    assert field.grows(waits, sequence)


def test_the_stage_is_that_of_a_running_sequence() -> None:
    sequence = SequenceState(1, "req-1", num_prompt_tokens=8)
    assert stage(sequence) is None
    sequence.status, sequence.num_computed_tokens = SequenceStatus.RUNNING, 8
    assert stage(sequence) is SequenceStage.PREFILL
    sequence.output_token_ids.append(5)
    assert stage(sequence) is SequenceStage.DECODE
    sequence.num_computed_tokens = 7  # computed again after a preemption
    assert stage(sequence) is SequenceStage.PREFILL


def test_a_status_sorts_by_its_place_in_the_lifecycle() -> None:
    statuses = (SequenceStatus.RUNNING, SequenceStatus.SWAPPED, SequenceStatus.WAITING)
    values = [
        FIELDS["status"].sort_value(request(), SequenceState(1, "req-1", status), ARRIVAL)
        for status in statuses
    ]
    assert values == sorted(values, key=float) != sorted(map(str, statuses))


def test_one_of_several_sequences_has_a_number() -> None:
    both = request()
    assert sequence_name(both, SequenceState(1, "req-1")) == "req-1"
    both.seq_ids.append(7)
    assert sequence_name(both, SequenceState(7, "req-1")) == "req-1/2"
    assert sequence_name(both, SequenceState(9, "req-1")) == "req-1"


def test_the_token_rate_counts_from_the_arrival() -> None:
    sequence = SequenceState(1, "req-1")
    assert token_rate(request(), sequence) is None
    assert token_rate(request(last_token_time=ARRIVAL + 2), sequence) is None
    sequence.output_token_ids.extend([1, 2, 3])
    assert token_rate(request(last_token_time=ARRIVAL + 2), sequence) == 1.5
    assert token_rate(request(), sequence) is None


def test_not_a_number_sorts_as_an_unknown_value() -> None:
    sequence = SequenceState(1, "req-1")
    assert FIELDS["queue"].sort_value(request(), sequence, math.nan) is None
    assert FIELDS["queue"].sort_value(request(), sequence, ARRIVAL + 1) == 1


def test_a_row_has_the_values_of_the_request_and_its_sequence() -> None:
    times = {"last_token_time": 106.0, "first_token_time": 102.0, "first_scheduled_time": 101.0}
    row = request(**times, finished_time=107.0)
    row.priority, row.lora, row.prompt = 3, "pirate", "Tell me"
    row.num_preemptions, row.num_lost_tokens, row.num_scheduled_steps = 2, 17, 9
    row.wait = WaitTimes(total=1.0, by_cause={"no_blocks": 1.0})
    row.harm, row.harm_estimated = 2.0, 0.5
    sequence = SequenceState(
        1,
        "req-1",
        SequenceStatus.RUNNING,
        num_prompt_tokens=40,
        num_computed_tokens=42,
        num_cached_tokens=36,
        num_prompt_hits=32,
        output_token_ids=Ints.of([5, 6, 7]),
        text="Once",
        block_table=[4, 8],
    )
    known = {
        "request": "req-1", "seq": 1, "status": "running", "stage": "decode", "prio": 3,
        "prompt": 40, "cached": 32, "computed": 42, "out": 3, "blocks": 2, "tps": 0.5,
        "ttft": 2.0, "itl": 2.0, "queue": 1.0, "waited": 1.0, "why": "blocks", "age": 4.0,
        "hit": 0.8, "preempt": 2, "text": "Once", "total": 43, "lost": 17, "steps": 9,
        "e2e": 7.0, "id": "req-1", "lora": "pirate", "prompt_text": "Tell me",
        "harm": 2.5,
    }  # fmt: skip
    assert {key: FIELDS[key].value(row, sequence, 110.0) for key in known} == known


def test_values_that_are_not_known_yet_are_none() -> None:
    row, sequence = request(), SequenceState(1, "req-1", num_prompt_tokens=40)
    for key in ("stage", "tps", "ttft", "itl", "age", "hit", "e2e", "prompt_text"):
        assert FIELDS[key].value(row, sequence, ARRIVAL) is None, key
    row.num_scheduled_steps = 1
    assert FIELDS["hit"].value(row, sequence, ARRIVAL) == 0.0
    assert FIELDS["hit"].value(row, SequenceState(1, "req-1"), ARRIVAL) is None, "of no prompt"


def test_both_words_of_a_preempted_sequence_are_its_status() -> None:
    again, sequence = request(), SequenceState(1, "req-1")
    assert status_words(again, sequence) == ("waiting", "waiting")
    again.num_preemptions = 1
    assert status_words(again, sequence) == ("preempt", "waiting")
    assert FIELDS["status"].also is not None
    assert FIELDS["status"].also(sequence) == "waiting"


def test_the_text_takes_the_rest_of_the_width() -> None:
    behind = DEFAULT_COLUMNS[DEFAULT_COLUMNS.index("text") + 1 :]
    assert not behind, f"declare {', '.join(behind)} before text, or not as a default column"


@pytest.mark.parametrize("key", FIELDS)
def test_a_column_is_a_field_and_has_a_help_text(key: str) -> None:
    field = FIELDS[key]
    assert field.key == key
    assert field.help
    assert (key in DEFAULT_COLUMNS) == field.is_default
