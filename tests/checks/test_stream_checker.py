"""Checks of a stream with gaps, and the findings that are stored."""

import pytest

from seqtop.checks.stream_checker import MAX_FINDINGS, Stored, StreamChecker
from seqtop.state import EngineState
from tests.support.hand_driven import arrival, engine_info, step


def started(stored: Stored = "newest") -> StreamChecker:
    checker = StreamChecker(stored=stored)
    checker.start(0, EngineState())
    checker.apply(1, engine_info())
    checker.apply(2, arrival(1))
    return checker


@pytest.mark.parametrize(("stored", "first"), [("first", 1), ("newest", 8)])
def test_a_rule_has_a_limited_number_of_findings(stored: Stored, first: int) -> None:
    checker = started(stored)
    num_findings = MAX_FINDINGS + 7
    for position in range(num_findings):
        checker.apply(3 + position, arrival(1))  # announced again
    numbers = [located.number for located in checker.found()]
    assert numbers == list(range(first, first + MAX_FINDINGS))
    assert checker.counts() == {"unknown": num_findings}
    assert checker.num_findings == num_findings


def test_checking_starts_again_after_a_gap() -> None:
    checker = started()
    assert (checker.num_gaps, checker.num_events) == (0, 2)
    checker.apply(3, step(0))
    checker.stop()
    checker.stop()
    assert not checker.has_started
    assert (checker.num_gaps, checker.step) == (1, -1)
    checker.start(8, EngineState())
    checker.apply(9, arrival(1))  # the state after the gap does not have it
    checker.start(12, EngineState())
    assert (checker.num_gaps, checker.num_steps, checker.num_events) == (2, 1, 4)
    assert checker.found() == []


def test_the_end_is_checked() -> None:
    checker = started()
    wrong = step(0)
    wrong.stats.num_used_blocks += 1
    checker.apply(3, wrong)
    assert "block-leak" not in checker.counts()
    checker.end()
    assert "block-leak" in checker.counts()
    assert {located.position for located in checker.found()} == {3}
