"""Checking what is on record: the same findings as on the stream, each at its place."""

from collections import Counter

import pytest

from seqtop.checks.background import BackgroundChecker
from seqtop.checks.checker import Checker
from seqtop.checks.finding import Finding
from seqtop.checks.gate import Gate
from seqtop.checks.stream_checker import MAX_FINDINGS
from seqtop.history.memory_store import MemoryStore
from seqtop.state import EngineState
from seqtop.state.model import DEFAULT_MAX_FINISHED
from seqtop.wire import codec, parsing
from seqtop.wire.messages import Heartbeat
from tests.support.broken_recordings import Unreadable
from tests.support.random_engine import RandomEngine

PAYLOADS = [codec.encode(event) for event in RandomEngine(11, 60, num_blocks=24)]
LONG = 60.0
"""Seconds within which everything here is checked."""


class Taker:
    """Takes events into a history, as a session does."""

    def __init__(self, history: MemoryStore) -> None:
        self.history = history
        self.state = EngineState()
        self.number = 0

    def take(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            event = parsing.event(payload)
            self.state.apply(event)
            self.history.append(self.number, payload, event, self.state)
            self.number += 1


@pytest.fixture
def history() -> MemoryStore:
    history = MemoryStore()
    Taker(history).take(PAYLOADS)
    return history


def on_the_stream() -> list[Finding]:
    checker = Checker()
    return [finding for payload in PAYLOADS for finding in checker.apply(parsing.event(payload))]


def test_it_finds_what_checking_the_stream_finds(history: MemoryStore) -> None:
    review, expected = BackgroundChecker(history), on_the_stream()
    assert expected
    assert review.replay.is_behind
    assert not review.replay.advance(LONG)
    assert not review.replay.is_behind
    assert [located.finding for located in review.findings()] == expected
    assert review.counts() == Counter(finding.rule for finding in expected)
    assert review.num_steps == 60
    assert review.step == 59
    assert not review.num_gaps


def test_each_finding_is_at_the_step_it_speaks_of(history: MemoryStore) -> None:
    review = BackgroundChecker(history)
    review.replay.advance(LONG)
    located_findings = review.findings()
    assert [located.number for located in located_findings] == list(
        range(1, len(located_findings) + 1)
    )
    assert [located.position for located in located_findings] == sorted(
        located.position for located in located_findings
    )
    for located in located_findings:
        assert history.index[located.position].step == located.finding.step


def test_going_from_finding_to_finding(history: MemoryStore) -> None:
    review = BackgroundChecker(history)
    review.replay.advance(LONG)
    by_position: dict[int, list[int]] = {}
    for located in review.findings():
        by_position.setdefault(located.position, []).append(located.number)
    position, there = 0, []
    while together := review.next(position):
        position = together[0].position
        assert [located.number for located in together] == by_position[position]
        there.append(position)
    assert there == list(by_position)
    back = []
    position = history.last + 1
    while together := review.previous(position):
        position = together[0].position
        assert [located.number for located in together] == by_position[position]
        back.append(position)
    assert back == there[::-1]


def test_it_goes_on_as_the_record_grows() -> None:
    history = MemoryStore()
    taker, review = Taker(history), BackgroundChecker(history)
    assert not review.replay.advance(LONG)
    for start in range(0, len(PAYLOADS), 7):
        taker.take(PAYLOADS[start : start + 7])
        assert not review.replay.advance(LONG)
    assert [located.finding for located in review.findings()] == on_the_stream()


def test_a_slice_of_time_is_no_more_than_that(history: MemoryStore) -> None:
    review = BackgroundChecker(history)
    assert review.replay.advance(0.0)
    assert review.num_steps == 0
    assert not review.replay.advance(LONG)


def test_after_a_gap_it_begins_anew() -> None:
    history = MemoryStore()
    taker = Taker(history)
    half = len(PAYLOADS) // 2
    taker.take(PAYLOADS[:half])
    state = history.at(history.last)
    taker.take(PAYLOADS[half:])
    review = BackgroundChecker(history)
    history.restore("one", taker.number + 5, state)
    taker.state, taker.number = state, taker.number + 6
    taker.take(PAYLOADS[half:])
    assert not review.replay.advance(LONG)
    assert review.num_gaps == 1
    assert review.num_steps > 60


def test_a_message_dropped_before_it_was_checked_is_a_gap() -> None:
    history = MemoryStore(max_events=100)
    taker, review = Taker(history), BackgroundChecker(history)
    taker.take(PAYLOADS[:20])
    assert not review.replay.advance(LONG)
    filler = codec.encode(Heartbeat(time=1.0, step=0))
    taker.take([filler] * 12_000)  # more than a segment, so that the first goes
    assert history.first > 20
    assert not review.replay.advance(LONG)
    assert review.num_gaps == 1
    assert not review.replay.is_behind


def test_the_newest_findings_of_a_rule_are_kept_and_all_are_counted() -> None:
    history = MemoryStore()
    state = EngineState()
    foreign = next(
        payload for payload in PAYLOADS if type(parsing.event(payload)).__name__ == "RequestArrived"
    )
    num_findings = MAX_FINDINGS + 20
    for number in range(num_findings + 1):  # all but the first announce a request anew
        event = parsing.event(foreign)
        state.apply(event)
        history.append(number, foreign, event, state)
    review = BackgroundChecker(history)
    assert not review.replay.advance(LONG)
    assert review.counts() == {"unknown": num_findings}
    assert review.num_findings == num_findings
    numbers = [located.number for located in review.findings()]
    assert numbers == list(range(21, num_findings + 1))


class StateGate(Gate):
    """A gate that demands nothing, and has the state of the checker."""

    def start(self, position: int, state: EngineState) -> None:
        self.state = state


def test_fewer_finished_requests_are_kept_than_the_history_has() -> None:
    history, gate = MemoryStore(), StateGate()
    taker = Taker(history)
    taker.state.max_finished = 2 * DEFAULT_MAX_FINISHED
    run = RandomEngine(11, 800, prompt=(4, 8), output=(1, 2))
    taker.take([codec.encode(event) for event in run])
    assert len(taker.state.finished) > DEFAULT_MAX_FINISHED
    assert not BackgroundChecker(history, gates=[gate]).replay.advance(LONG)
    assert len(gate.state.finished) <= DEFAULT_MAX_FINISHED


def test_an_unreadable_message_is_a_gap_and_no_endless_loop() -> None:
    history = Unreadable()
    Taker(history).take(PAYLOADS)
    review = BackgroundChecker(history)
    for _ in range(100):
        review.replay.advance(0.001)
    assert review.num_gaps
    assert not review.findings()
