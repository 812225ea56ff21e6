"""The search for a condition finds what evaluating every position finds."""

import random

import pytest

from seqtop.history import segments
from seqtop.history.condition_search import ConditionSearch
from seqtop.history.memory_store import MemoryStore
from seqtop.history.timeline import Timeline
from seqtop.state import EngineState
from seqtop.state.condition import parse_condition
from tests.support.random_engine import RandomEngine
from tests.support.scripted import Script, ScriptedSource

CONDITIONS = (
    "kv>60%",
    "status:preempt",
    "status:running out>5",
    "waiting>=3 status:running",
    "kv>40% -status:running",
    "age>200ms",
    "waited>400ms",
    "fox",
)


def recorded(seed: int, monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A random run in many short segments, with a gap."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 4_000)
    source = ScriptedSource()
    events = [*RandomEngine(seed, 60, num_blocks=24)]
    for event in events[: len(events) // 2]:
        source.apply(event)
    source.replace(source.state, num_missed=3)
    for event in events[len(events) // 2 :]:
        source.apply(event)
    history = source.history
    assert history.keyframe_after(history.first) is not None
    return history


def search(timeline: Timeline, text: str, position: int, direction: int) -> ConditionSearch:
    finished = ConditionSearch(timeline, parse_condition(text), position, direction)
    while finished.advance(0.0):
        pass
    assert not finished.error
    return finished


def beginnings(states: dict[int, EngineState], text: str) -> list[int]:
    """The positions at which the condition begins to hold, by evaluating each."""
    before: set[int] = set()
    positions = []
    for position, state in states.items():
        condition, matching = parse_condition(text), {-1}
        if condition.filter is not None:
            matching = {seq_id for seq_id in state.sequences if condition.matches(state, seq_id)}
        now = matching if condition.holds_for_engine(state) else set()
        if now - before:
            positions.append(position)
        before = now
    return positions


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_where_a_condition_begins_to_hold(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = recorded(seed, monkeypatch)
    rng = random.Random(seed)
    num_matches = 0
    positions = range(history.first, history.last + 1)
    states = {position: history.at(position) for position in positions}
    for text in CONDITIONS:
        expected = beginnings(states, text)
        num_matches += len(expected)
        starts = [history.first, history.last, *rng.choices(range(history.last), k=6)]
        for position in starts:
            after = min((match for match in expected if match > position), default=None)
            before = max((match for match in expected if match < position), default=None)
            assert search(history, text, position, 1).match == after, (text, position)
            assert search(history, text, position, -1).match == before, (text, position)
    assert num_matches > 20


def known_run() -> tuple[MemoryStore, Script]:
    """`victim` is preempted in steps 3 and 6; the pool of 8 blocks is full from step 2 to 3."""
    script = Script(ScriptedSource(), num_gpu_blocks=8)
    script.arrive("victim", num_prompt=40)
    script.arrive("other", num_prompt=70)
    script.step(prefill={"victim": 40})
    script.step()
    script.step(prefill={"other": 70}, decode=["victim"])
    script.step(preempt={"victim": "other"}, decode=["other"])
    script.step(decode=["other"])
    script.step(prefill={"victim": 42}, decode=[])
    script.step(preempt={"victim": "other"}, decode=["other"])
    history = script.source.history
    return history, script


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("status:preempted request:victim", [3, 6]),
        ("status:preempted request:other", []),
        ("kv>95%", [2, 5]),
        ("kv>95% request:victim", [2, 5]),
        ("prefill>50", [2]),
        ("running>=2", [2, 5]),
    ],
)
def test_a_run_whose_answer_is_known(text: str, steps: list[int]) -> None:
    history, _ = known_run()

    def walk(position: int, direction: int) -> list[int]:
        steps = []
        while (at := search(history, text, position, direction).match) is not None:
            steps.append(history.index[at].step)
            position = at
        return steps

    assert walk(history.first, 1) == steps
    assert walk(history.last + 1, -1) == steps[::-1]


def test_the_sequence_that_begins_to_match_is_named() -> None:
    history, script = known_run()
    finished = search(history, "status:preempt", history.first, 1)
    assert finished.match_seq_id == script.actors["victim"].seq_ids[0]
    assert search(history, "kv>95%", history.first, 1).match_seq_id is None


def test_it_works_in_slices() -> None:
    """Each reads a part only, however long the history is."""
    history, _ = known_run()
    searching = ConditionSearch(history, parse_condition("status:swapped"), history.first, 1)
    num_slices = 1
    while searching.advance(0.0):
        num_slices += 1
    assert num_slices > history.last - history.first
    assert (searching.match, searching.is_done) == (None, True)
