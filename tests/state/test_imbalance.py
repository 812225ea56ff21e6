"""Engines of one model of which one is full and another has room."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from seqtop.state import EngineState
from seqtop.state.imbalance import NamedEngine, imbalance
from seqtop.state.latency import Latencies
from seqtop.state.summary import summarize
from seqtop.state.verdict import of_last_minute
from tests.support.simulated_scheduler import REMOTE, SimulatedScheduler


def engine(rank: int, num_requests: int, **fields: Any) -> NamedEngine:
    model = fields.pop("model", "m")
    run = SimulatedScheduler(engine_id="m", model=model, data_parallel_rank=rank, max_num_seqs=16)
    for number in range(num_requests):
        run.add(f"r{number}", 250, 40, **fields)
    run.steps(20)
    state = EngineState()
    for event in run.events:
        state.apply(event)
    latencies = Latencies()
    latencies.observe(state, None)
    summary = summarize(state, latencies, None, of_last_minute(state))
    assert summary is not None
    return NamedEngine(f"pod-{rank}", summary)


def test_a_full_rank_beside_an_idle_one_is_named() -> None:
    full, idle = engine(0, 40), engine(1, 0)
    sentence = imbalance([idle, full])
    assert sentence.startswith("pod-0 (rank 0, 2")
    assert " waiting, KV 9" in sentence
    assert sentence.endswith("is full beside pod-1 (rank 1, 0 waiting, KV 0%)")


def test_engines_that_are_all_full_or_serve_other_models_are_not() -> None:
    full, other = engine(0, 40), engine(1, 40)
    assert imbalance([full, other]) == ""
    assert imbalance([full, engine(1, 0, model="another")]) == ""
    assert imbalance([engine(0, 2), engine(1, 0)]) == ""
    assert imbalance([full]) == ""


def test_requests_whose_loads_last_are_not_waiting_for_room() -> None:
    assert imbalance([engine(0, 40, status=REMOTE), engine(1, 0)]) == ""


@pytest.mark.parametrize(("num_parked", "words"), [(3, "pod-0 (rank 0, 3 waiting, "), (4, "")])
def test_those_that_wait_for_something_else_are_not_counted(num_parked: int, words: str) -> None:
    full = engine(0, 40)
    counts = {"num_waiting": 5, "num_swapped": 1, "num_parked": num_parked}
    summary = msgspec.structs.replace(full.summary, **counts)
    sentence = imbalance([NamedEngine("pod-0", summary), engine(1, 0)])
    assert bool(sentence) is bool(words)
    assert sentence.startswith(words)


def test_of_two_full_engines_the_one_with_the_longer_queue_is_named() -> None:
    fullest, full = engine(0, 40), engine(1, 40)
    shorter = msgspec.structs.replace(full.summary, num_waiting=fullest.summary.num_waiting - 1)
    sentence = imbalance([NamedEngine("pod-1", shorter), engine(2, 0), fullest])
    assert sentence.startswith("pod-0 ")
