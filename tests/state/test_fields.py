"""The values of fields."""

import math
from typing import Any

import pytest

from seqtop.sequence import RequestMetrics, SequenceStage, SequenceStatus
from seqtop.state import RequestState, SequenceState
from seqtop.state.fields import (
    BEHIND,
    COLUMNS,
    FIELDS,
    PREEMPTED,
    is_stalled,
    queue_time,
    sequence_name,
    stage,
    status_word,
    token_rate,
    wait_word,
)
from seqtop.wire.columns import Ints
from seqtop.wire.messages import WaitReason

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
    assert queue_time(request(time_in_queue=1.5), running, ARRIVAL + 9) == 1.5


def test_a_sequence_without_a_token_for_long_is_stalled() -> None:
    """For two seconds, and ten times as long as between its tokens so far."""
    running = SequenceState(1, "req-1", status=SequenceStatus.RUNNING)
    fast = request(first_token_time=ARRIVAL, last_token_time=ARRIVAL + 1)
    assert not is_stalled(fast, running, ARRIVAL + 99), "it has no token yet"
    running.output_token_ids = Ints.of(range(11))
    assert not is_stalled(fast, running, ARRIVAL + 3)
    assert is_stalled(fast, running, ARRIVAL + 3.1)
    slow = request(first_token_time=ARRIVAL, last_token_time=ARRIVAL + 10)
    assert not is_stalled(slow, running, ARRIVAL + 20)
    assert is_stalled(slow, running, ARRIVAL + 20.1)
    running.status = SequenceStatus.WAITING
    assert not is_stalled(slow, running, ARRIVAL + 99)


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
    waits.wait_reason = WaitReason(request_id="req-1", cause="no_blocks", num_missing=2)
    assert wait_word(waits, sequence) == "blocks"
    waits.wait_reason = WaitReason(request_id="req-1", cause="unknown")
    assert wait_word(waits, sequence) is None
    sequence.engine_status = "PREEMPTED"
    assert wait_word(waits, sequence) is None
    sequence.engine_status = "WAITING_FOR_FSM"
    assert wait_word(waits, sequence) == "waiting_for_fsm"


def test_the_stage_is_that_of_a_running_sequence() -> None:
    sequence = SequenceState(1, "req-1", num_prompt_tokens=8)
    assert stage(sequence) is None
    sequence.status, sequence.num_computed_tokens = SequenceStatus.RUNNING, 8
    assert stage(sequence) is SequenceStage.PREFILL
    sequence.output_token_ids.append(5)
    assert stage(sequence) is SequenceStage.DECODE
    sequence.num_computed_tokens = 4  # computed again after a preemption
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
    sequence.output_token_ids.extend([1, 2, 3])
    assert token_rate(request(last_token_time=ARRIVAL + 2), sequence) == 1.5
    assert token_rate(request(), sequence) is None


def test_not_a_number_sorts_as_an_unknown_value() -> None:
    sequence = SequenceState(1, "req-1")
    assert FIELDS["queue"].sort_value(request(), sequence, math.nan) is None
    assert FIELDS["queue"].sort_value(request(), sequence, ARRIVAL + 1) == 1


@pytest.mark.parametrize("key", FIELDS)
def test_a_column_is_a_field_and_has_a_help_text(key: str) -> None:
    field = FIELDS[key]
    assert field.key == key
    assert field.help
    assert (field in COLUMNS) == field.is_default
