"""The wait graph of a request: who holds what it waits for, and what lets it advance."""

from typing import Any

import pytest

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.remaining_wait import RemainingWait, describe, remaining_wait
from seqtop.state.wait_graph import SKIPPED_STEPS, WaitGraph, tree, wait_graph
from seqtop.state.wait_graph import describe as in_words
from seqtop.wire.messages import WaitReason
from tests.support.events import arrival, engine_info, stats, step, update, wait_reason
from tests.support.scripted import Script, ScriptedSource


def script() -> Script:
    """One runs, and two wait."""
    made = Script(ScriptedSource())
    for name in ("runs", "head", "behind"):
        made.arrive(name, num_prompt=40)
    return made


def graph_after(reasons: list[WaitReason], name: str) -> WaitGraph:
    made = script()
    made.step(prefill={"runs": 40}, waits=reasons)
    state = made.source.state
    return wait_graph(state, state.requests[name])


@pytest.mark.parametrize(
    ("reasons", "name", "source", "root", "sentence"),
    [
        ([], "runs", "step", "step", "The next step advances runs."),
        ([], "head", "unknown", "unknown", "The last step gave no reason"),
        ([wait_reason("head", "paused")], "head", "paused", "paused", "is resumed"),
        ([wait_reason("head", "token_budget")], "head", "budget", "budget", "a new token budget"),
        (
            [wait_reason("head", "no_blocks", 2)],
            "behind", "queue", "holders", "enough blocks are free; runs holds some.",
        ),
        ([wait_reason("head", "seq_limit", 1)], "head", "holders", "holders", "; runs runs."),
        ([wait_reason("behind", "seq_limit", 1)], "head", "none", "none", "no reason is given"),
        ([wait_reason("gone", "no_blocks", 1)], "head", "none", "none", "gone, which has ended"),
    ],
)  # fmt: skip
def test_source_of_progress(
    reasons: list[Any], name: str, source: str, root: str, sentence: str
) -> None:
    graph = graph_after(reasons, name)
    assert (graph.source, graph.root.source) == (source, root)
    assert sentence in in_words(graph)
    assert graph.is_stuck == (root == "none")


@pytest.mark.parametrize(
    ("num_running", "num_computed", "source"),
    [(1, 128, "step"), (1, 127, "none"), (2, 127, "step"), (2, 126, "none"), (0, 127, "none")],
)
def test_one_that_is_skipped_while_tokens_are_left_has_no_source(
    num_running: int, num_computed: int, source: str
) -> None:
    state = EngineState()
    runs = update(1, SequenceStatus.RUNNING, 2, blocks=[0])
    figures = stats(num_running=num_running, num_prefill_tokens=num_computed)
    for event in (engine_info(max_num_batched_tokens=128), arrival(1)):
        state.apply(event)
    for number in range(SKIPPED_STEPS + 1):
        assert wait_graph(state, state.requests["req-1"]).source != "none"
        state.apply(step(number, sequences=[runs] * (number == 0), stats=figures))
    assert wait_graph(state, state.requests["req-1"]).source == source


def test_the_blocks_of_an_ended_request_wait_for_their_receiver() -> None:
    made = script()
    made.step(prefill={"runs": 40}, waits=[wait_reason("head", "no_blocks", 2)])
    state = made.source.state
    request = state.requests["runs"]
    state.sequences[request.seq_ids[0]].status = SequenceStatus.FINISHED_STOPPED
    graph = wait_graph(state, request)
    assert (graph.source, graph.detail) == ("outside", "has ended, and its blocks are held")
    assert not graph.is_stuck
    state.sequences[request.seq_ids[0]].block_table = []
    assert wait_graph(state, request).detail == "has ended"


def test_tree_names_the_head_of_the_queue_and_those_that_hold_blocks() -> None:
    graph = graph_after([wait_reason("head", "no_blocks", 2)], "behind")
    available = graph.root.num_available
    assert tree(graph) == [
        "behind  waits behind head",
        "└ head  waits: too few blocks are free; 2 more blocks needed",
        f"  ├ {available} blocks available after the step; 2 too few when it began",
        "  └ runs  3 blocks  runs: 1 of at most 64 output tokens",
    ]
    assert tree(graph, most=len(graph.root.holders)) == tree(graph)
    assert tree(graph, most=0)[-1] == "  └ 1 other request  3 blocks"


@pytest.mark.parametrize(
    ("ahead", "admissions", "now", "sentence"),
    [
        (0, [], 100.0, "0 sequences ahead; the remaining wait is not known: no admission"),
        (3, [98.0, 99.0], 100.0, "not known: 2 admissions in the last minute."),
        (0, [50.0, 51.0, 52.0, 53.0], 90.0, "not known: no admission for 37.0 s, longer than"),
        (1, [91.0, 93.0, 94.0, 97.0, 99.0, 100.0], 100.0, "~3.50 s (3.00 s to 5.00 s), estimated"),
        (1, [91.0, 93.0, 94.0, 97.0, 99.0, 100.0], 101.0, "~2.50 s (2.00 s to 4.00 s), estimated"),
        (
            1,
            [91.0, 93.0, 94.0, 97.0, 99.0, 100.0],
            104.5,
            "not known: no admission for 4.50 s",
        ),
        (0, [91.0, 92.0, 92.0, 92.0, 93.0, 96.0, 99.0, 102.0], 103.5, "~1.50 s (1.50 s to 1.50 s)"),
        (4, [91.0, 93.0, 94.0, 97.0, 99.0, 100.0], 104.5, "not known: no admission for 4.50 s"),
        (0, [97.0, 97.0, 98.0, 99.0, 99.0], 100.0, "~600 ms (317 ms to 5.68 s), estimated"),
        (9, [97.0, 98.0, 99.0, 100.0], 100.0, "~7.50 s (3.75 s to more), estimated from 4"),
    ],
)
def test_remaining_wait_repeats_the_recent_admissions(
    ahead: int, admissions: list[float], now: float, sentence: str
) -> None:
    estimate = remaining_wait(ahead, admissions, now)
    assert isinstance(estimate, RemainingWait)
    assert sentence in describe(estimate)
