"""The costs of steps: the fit that harm, the ledger and predictions share, and CUDA graphs."""

import math
import random

import pytest

from seqtop.history.step_time import fit as fit_times
from seqtop.history.timed_steps import TimedStep
from seqtop.state import EngineState
from seqtop.state.step_costs import (
    COSTS,
    errors,
    fit,
    gap_parts,
    has_graph,
    own_times,
    step_sums,
)
from seqtop.wire.messages import CudaGraph, Step
from tests.support import events
from tests.support.random_engine import RandomEngine

Row = tuple[int, int, float]


def sums(rows: list[Row]) -> list[float]:
    own = [step_sums((1.0, *tokens), seconds) for *tokens, seconds in rows]
    return [sum(column) for column in zip(*own, strict=True)]


def squared_error(rows: list[Row], costs: dict[str, float]) -> float:
    step, prefill, decode = (costs.get(name, 0.0) for name in COSTS)
    return sum((step + prefill * p + decode * d - seconds) ** 2 for p, d, seconds in rows)


def test_no_cost_is_negative_and_no_other_costs_are_closer() -> None:
    """Steps that take less time, the more tokens they have."""
    rows = [(x, x % 3, 5.0 - 0.1 * x) for x in range(30)]
    found = fit(sums(rows))
    assert min(found.values()) > 0
    grid = [(a / 4, b / 20, c / 20) for a in range(30) for b in range(10) for c in range(10)]
    least = min(squared_error(rows, dict(zip(COSTS, own, strict=True))) for own in grid)
    assert squared_error(rows, found) <= least + 1e-9


def test_steps_that_are_all_alike_cost_what_they_took() -> None:
    rows = [(2, 4, 8.0)] * 10
    assert squared_error(rows, fit(sums(rows))) == pytest.approx(0.0, abs=1e-9)


def test_given_costs_are_not_fitted() -> None:
    draw = random.Random(1)
    sizes = [(draw.randrange(100), draw.randrange(20)) for _ in range(50)]
    rows = [(p, d, 0.5 + 0.01 * p + 0.02 * d) for p, d in sizes]
    assert fit(sums(rows)) == pytest.approx({"step": 0.5, "prefill": 0.01, "decode": 0.02})
    found = fit(sums(rows), {"prefill": 0.01, "gap": 9.0})
    assert found == pytest.approx({"step": 0.5, "prefill": 0.01, "decode": 0.02})
    assert fit(sums(rows), {"prefill": 0.0})["prefill"] == 0.0


def test_the_standard_error_falls_with_the_number_of_steps() -> None:
    draw = random.Random(2)
    found: list[float] = []
    for number in (100, 10_000):
        rows = [
            (p, 1, 1.0 + 0.1 * p + draw.gauss(0.0, 0.5))
            for p in (draw.randrange(100) for _ in range(number))
        ]
        costs = fit(sums(rows))
        found.append(errors(sums(rows), [*costs], squared_error(rows, costs))["prefill"])
    assert found[0] == pytest.approx(10 * found[1], rel=0.2)


def test_a_state_and_a_prediction_find_the_same_costs() -> None:
    """Of the same steps, of which the state forgets the first ones."""
    state, timed = EngineState(), list[TimedStep]()
    before = 0.0
    for event in RandomEngine(3, 400):
        state.apply(event)
        if isinstance(event, Step):
            stats = event.stats
            tokens = stats.num_prefill_tokens, stats.num_decode_tokens
            timed.append(
                TimedStep([], [], event.start_time, event.time, *tokens, busy_until=before)
            )
            before = event.time
    costs, model = state.step_costs, fit_times(timed)
    assert costs.per_step == pytest.approx(model.per_step, rel=0.1)
    assert costs.per_prefill_token == pytest.approx(model.per_prefill_token, rel=0.1, abs=1e-5)
    assert costs.per_decode_token == pytest.approx(model.per_decode_token, rel=0.1, abs=1e-4)


def test_neither_a_missing_graph_nor_the_scheduler_is_a_cost_of_tokens() -> None:
    """Batches of more than 32 have no graph, and the scheduler takes a millisecond a sequence."""
    state, time = EngineState(), 100.0
    for number in range(200):
        size, prefill = 16 + number % 32, 50 * (number % 5)
        has = size <= 32
        scheduling = 0.001 * size
        seconds = (0.008 if has else 0.035) + 0.0001 * prefill + 0.00002 * size + scheduling
        figures = events.stats(
            num_prefill_tokens=prefill, num_decode_tokens=size, scheduler_time=scheduling
        )
        figures.cuda_graph = CudaGraph("FULL" if has else "NONE", num_tokens=1, num_padded_tokens=1)
        start, time = time, time + seconds
        state.apply(events.step(number, stats=figures, start_time=start, time=time))
    costs = state.step_costs
    assert costs.per_step == pytest.approx(0.008, rel=0.01)
    assert costs.without_graph == pytest.approx(0.027, rel=0.01)
    assert costs.per_decode_token == pytest.approx(0.00002, rel=0.1)
    assert costs.per_prefill_token == pytest.approx(0.0001, rel=0.01)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e300, None])
def test_a_time_of_the_scheduler_that_cannot_be_leaves_the_costs_numbers(
    seconds: float | None,
) -> None:
    state = EngineState()
    for event in RandomEngine(3, 100):
        if isinstance(event, Step):
            event.stats.scheduler_time = seconds
        state.apply(event)
    costs = state.step_costs
    assert costs.per_step is not None
    known = costs.per_step, costs.per_prefill_token, costs.per_decode_token, costs.without_graph
    assert all(0 <= cost < 1 for cost in known)


def test_a_step_with_a_graph_is_told_from_one_without() -> None:
    modes = {None: None, "NONE": False, "none": False, "FULL": True, "piecewise": True}
    for mode, expected in modes.items():
        stats = events.stats()
        stats.cuda_graph = (
            None if mode is None else CudaGraph(mode=mode, num_tokens=1, num_padded_tokens=1)
        )
        assert has_graph(stats) is expected


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        (-1.0, (0.25, 0.5, 0.75)),
        (0.0, (0.25, 0.5, 0.75)),
        (math.inf, (0.25, 0.5, 0.75)),
        (0.125, (0.125, 0.5, 0.75)),
        (0.5, (0.0, 0.25, 0.5)),
        (2.0, (0.0, 0.0, 0.0)),
    ],
)
def test_an_overlap_is_first_of_scheduling_and_then_of_execution(
    overlap: float, expected: tuple[float, float, float]
) -> None:
    assert own_times(0.25, 0.5, 0.75, overlap) == expected
    assert own_times(None, None, None, overlap) == (None, None, None)


@pytest.mark.parametrize(
    ("changes", "was_idle", "parts"),
    [
        ({"num_decode_tokens": 1}, False, {"host": 1.75, "paced": 0.25}),
        ({"num_decode_tokens": 1}, True, {"idle": 2.0}),
        ({"num_running": 1}, False, {"idle": 2.0}),
        ({"num_running": 1}, True, {"idle": 2.0}),
        ({}, False, {"host": 1.75, "paced": 0.25}),
    ],
)
def test_a_gap_is_idle_if_nothing_was_unfinished_or_nothing_advances(
    changes: dict[str, int], was_idle: bool, parts: dict[str, float]
) -> None:
    figures = events.stats(paced_time=0.25, **changes)
    assert gap_parts(2.0, figures, was_idle=was_idle) == parts
