"""Checks of a stream with gaps, and the findings that are stored."""

import pytest

from seqtop.checks import stream_checker
from seqtop.checks.stream_checker import MAX_FINDINGS, Stored, StreamChecker
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.wire.messages import Step
from tests.support import events
from tests.support.events import arrival, engine_info, step


def started(stored: Stored = "newest") -> StreamChecker:
    checker = StreamChecker(stored=stored)
    checker.start(0, EngineState())
    checker.check(1, engine_info(enable_prefix_caching=False))  # these prompts are short
    checker.check(2, arrival(1))
    return checker


@pytest.mark.parametrize(("stored", "first"), [("first", 1), ("newest", 8)])
def test_a_rule_has_a_limited_number_of_findings(stored: Stored, first: int) -> None:
    checker = started(stored)
    num_findings = MAX_FINDINGS + 7
    for position in range(num_findings):
        checker.check(3 + position, arrival(1))  # announced again
    numbers = [located.number for located in checker.findings()]
    assert numbers == list(range(first, first + MAX_FINDINGS))
    assert checker.counts() == {"unknown": num_findings}
    assert checker.num_findings == num_findings


def test_checking_starts_again_after_a_gap() -> None:
    checker = started()
    assert (checker.num_gaps, checker.num_events) == (0, 2)
    checker.check(3, step(0))
    checker.stop()
    checker.stop()
    assert (checker.num_gaps, checker.step) == (1, -1)
    checker.start(8, EngineState())
    checker.check(9, arrival(1))  # the state after the gap does not have it
    checker.start(12, EngineState())
    assert (checker.num_gaps, checker.num_steps, checker.num_events) == (2, 1, 4)
    assert checker.findings() == []


def test_a_stream_may_begin_with_a_gap() -> None:
    checker = StreamChecker()
    assert (checker.num_gaps, checker.ends_in_gap) == (0, False)
    checker.stop()
    assert (checker.num_gaps, checker.ends_in_gap) == (1, True)
    checker.start(5, EngineState())
    assert (checker.num_gaps, checker.ends_in_gap) == (1, False)


def test_the_end_is_checked() -> None:
    checker = started()
    wrong = step(0)
    wrong.stats.num_used_blocks += 1
    checker.check(3, wrong)
    assert "block-leak" not in checker.counts()
    checker.end()
    assert "block-leak" in checker.counts()
    assert {located.position for located in checker.findings()} == {3}


def computed_beyond(number: int) -> Step:
    """A step after which more tokens are computed than the sequence has."""
    update = events.update(1, SequenceStatus.RUNNING, 50 + number, table=[*range(9)])
    return step(number, sequences=[update])


def test_findings_about_a_sequence() -> None:
    """Those that name it or its request, of the same start of the engine, up to a position."""
    checker = started()
    for position in (3, 4):
        checker.check(position, computed_beyond(position))
    about = checker.about("one", "req-1", 1, 10)
    assert {located.position for located in about} == {3, 4}
    assert "computed-beyond" in {located.finding.rule for located in about}
    assert {located.position for located in checker.about("one", "req-1", 1, 3)} == {3}
    assert checker.about("another", "req-1", 1, 10) == []
    assert checker.about("one", "req-2", 2, 10) == []
    assert checker.num_errors == checker.num_findings >= len(about)
    assert not checker.is_index_full


def test_the_index_of_findings_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_checker, "MAX_INDEXED", 5)
    checker = started()
    for position in range(3, 13):
        checker.check(position, computed_beyond(position))
    assert len(checker.about("one", "req-1", 1, 100)) == 5
    assert checker.is_index_full
    assert checker.num_findings >= 10
