"""Conditions that are watched: what is told, and what is counted."""

from seqtop.alerts.watch import PAUSE_SECONDS, ConditionChange, ConditionWatch
from seqtop.state.condition import parse_condition
from seqtop.state.listener import StateChange
from tests.support.events import engine_info, stats, step
from tests.support.random_engine import RandomEngine
from tests.support.scripted import ScriptedSource


class Watched:
    """A condition on a source whose events a test writes, and a clock that it moves."""

    def __init__(self, source: str) -> None:
        self.now = 1_000.0
        self.engine = ScriptedSource(engine_info())
        self.watch = ConditionWatch(parse_condition(source), lambda: self.now)
        self.engine.add_listener(self.watch.observe)
        self._number = 0

    def step(self, num_waiting: int) -> None:
        self.engine.apply(step(self._number, stats=stats(num_waiting=num_waiting)))
        self._number += 1

    def told(self) -> list[ConditionChange]:
        return [*self.watch.poll()]


def test_a_beginning_and_its_end_are_told_once() -> None:
    watched = Watched("waiting>5")
    watched.step(2)
    assert watched.told() == []
    watched.step(6)
    (began,) = watched.told()
    assert (began.has_begun, began.step, began.num_left_out) == (True, 1, 0)
    assert watched.watch.sentence(began) == "waiting>5 holds since step 1"
    watched.step(7)
    assert watched.told() == []
    watched.step(2)
    (ended,) = watched.told()
    assert (ended.has_begun, ended.step) == (False, 3)
    assert ended.held_seconds == watched.engine.state.time - began.time
    assert watched.watch.sentence(ended).startswith("waiting>5 held for ")
    assert watched.told() == []


def test_a_beginning_and_an_end_between_two_looks_are_told() -> None:
    watched = Watched("waiting>5")
    watched.step(6)
    watched.step(2)
    assert [change.has_begun for change in watched.told()] == [True, False]


def test_of_many_beginnings_one_a_minute_is_told_and_the_others_are_counted() -> None:
    watched = Watched("waiting>5")
    told = []
    for _ in range(1_000):
        watched.step(6)
        watched.step(2)
        told += watched.told()
        watched.now += 0.125
    assert [change.has_begun for change in told] == [True, False] * 3
    assert [change.num_left_out for change in told if change.has_begun] == [0, 479, 479]
    watched.step(6)
    assert watched.told() == []
    watched.now += PAUSE_SECONDS
    (begun,) = watched.told()
    assert begun.num_left_out == 39, "it still holds when the pause ends"


def test_a_request_that_matches_is_named() -> None:
    watch = ConditionWatch(parse_condition("status:waiting out<1"))
    source = ScriptedSource()
    source.add_listener(watch.observe)
    for event in RandomEngine(5, 30, load=12, max_running=4):
        source.apply(event)
        if watch.holds:
            break
    (began,) = watch.poll()
    assert began.request_id in source.state.requests
    assert watch.sentence(began).endswith(f", by {began.request_id}")


def test_another_state_is_read_whole() -> None:
    watched = Watched("waiting>5")
    watched.step(6)
    assert [change.has_begun for change in watched.told()] == [True]
    other = ScriptedSource(engine_info(incarnation="two"))
    watched.watch.observe(StateChange(other.state, None))
    assert [change.has_begun for change in watched.told()] == [False]
