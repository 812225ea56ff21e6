"""Rules about times: each finds a run that is broken in just its way."""

from collections.abc import Callable

import pytest

from seqtop.sequence import RequestMetrics, SequenceStatus
from seqtop.wire.messages import Event, RequestFinished
from tests.support.events import arrival, engine_info
from tests.support.mutants import TIME_MUTANTS, assert_found, check


@pytest.mark.parametrize(("rule", "mutate"), TIME_MUTANTS)
def test_mutant_is_found_by_its_rule_alone(
    payloads: list[bytes], rule: str, mutate: Callable[[list[Event]], None]
) -> None:
    assert_found(payloads, rule, mutate)


@pytest.mark.parametrize(
    ("scheduled", "expected"),
    [
        (1.0, []),  # all at once, as coarse clocks have it
        (
            2.0,
            [
                "first_token_time is 1 s before first_scheduled_time",
                "time_in_queue is 0 s, first scheduled minus arrival 1 s",
            ],
        ),
    ],
)
def test_times_of_a_request_may_be_equal(scheduled: float, expected: list[str]) -> None:
    metrics = RequestMetrics(1.0, 1.0, scheduled, 1.0, 0.0, 1.0)
    ended = RequestFinished("req-1", 1.0, SequenceStatus.FINISHED_STOPPED, metrics)
    found = check([engine_info(), arrival(1), ended])
    assert [finding.message for finding in found] == expected
