"""The cost of a step: the parts of its time, and the costs of its tokens.

This is the one place that divides the time of a step, and the one fit of it: the columns *Harm*,
the ledger, predictions and headlines have their figures from here. A step takes the same time for
each prefill token, for each decode token, and for itself, which may be more without a CUDA graph.
The scheduler's time is no cost of a token, so a state leaves it out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from seqtop.sequence import RequestMetrics
from seqtop.state.least_squares import inverse_diagonal, solve_non_negative
from seqtop.state.model import EngineData
from seqtop.wire.messages import Step, StepStats

STEP_PARTS = ("scheduler", "forward", "execute", "rest")
"""The parts of a step's duration.

`execute` is the time of the model's execution outside of the forward pass, `rest` the time that is
neither scheduling nor execution, such as output processing."""
TIME_PARTS = (*STEP_PARTS, "host", "paced", "idle")
"""The parts of an engine's time.

`host` is the time between two steps while requests are unfinished, `paced` the part of it in which
the engine waited on purpose, `idle` the time without any request, or before a step in which none
could run."""
MIN_STEPS = 20
"""Steps that a fit needs."""
COSTS = ("step", "prefill", "decode")
"""The things that costs are fitted for: each step, each prefill token and each decode token."""
_COLUMNS = (*COSTS, "without_graph")
"""The same, and each step that has no CUDA graph, which a state fits, too."""
_FADE = 0.999
"""The weight of a step's sums after each further step, for the costs in a state."""
_MAX_STEPS_BETWEEN_FITS = 500
_LEAST_COST = 1e-9
"""Seconds below which a cost is an error of rounding."""


class OwnTimes(NamedTuple):
    """The seconds of a step in which no step before it ran; `None` if unknown."""

    scheduler: float | None
    forward: float | None
    execute: float | None
    """Those of the forward pass are included."""


def own_times(
    scheduler: float | None, forward: float | None, execute: float | None, overlap: float
) -> OwnTimes:
    """Returns what an overlap leaves of the times of a step.

    An engine that schedules ahead begins a step before the one before has ended. That time is the
    earlier one's, so times of steps can be added. Execution begins when scheduling has ended, and
    with the forward pass.

    Args:
        scheduler: Seconds of scheduling, here and below `None` if unknown.
        forward: Seconds of the forward pass.
        execute: Seconds of forward pass, sampling and everything between.
        overlap: Seconds from the start of the step to the end of the step before; negative if that
            had ended.
    """
    if not 0 < overlap < math.inf:
        return OwnTimes(scheduler, forward, execute)
    executing = max(overlap - (scheduler or 0.0), 0.0)
    return OwnTimes(
        None if scheduler is None else max(scheduler - overlap, 0.0),
        None if forward is None else max(forward - executing, 0.0),
        None if execute is None else max(execute - executing, 0.0),
    )


def own_times_of(step: Step, since: float) -> OwnTimes:
    """Returns the times of a step after `since`, the end of the step before in epoch seconds."""
    stats = step.stats
    return own_times(
        stats.scheduler_time,
        stats.model_forward_time,
        stats.model_execute_time,
        since - step.start_time,
    )


def scheduling_time(step: Step, since: float, duration: float) -> float:
    """Returns the seconds of scheduling in a step after `since`, at most its duration."""
    seconds = own_times_of(step, since).scheduler or 0.0
    return min(seconds, duration) if seconds > 0 else 0.0  # none if it is no number


def charge_times(metrics: RequestMetrics, times: OwnTimes) -> None:
    """Adds the times of a step to those of a request that was in its batch.

    An unknown time changes nothing, so an unknown total stays unknown.
    """
    if times.scheduler is not None:
        metrics.scheduler_time = (metrics.scheduler_time or 0.0) + times.scheduler
    if times.forward is not None:
        metrics.model_forward_time = (metrics.model_forward_time or 0.0) + times.forward
    if times.execute is not None:
        metrics.model_execute_time = (metrics.model_execute_time or 0.0) + times.execute


def time_parts(stats: StepStats, duration: float, overlap: float = 0.0) -> dict[str, float]:
    """Returns the seconds of each of `STEP_PARTS`; their sum is at most `duration`.

    A part that the engine does not report is missing. What the parts leave of `duration` is
    unknown.

    Args:
        stats: The figures of the step.
        duration: Its seconds without those in which the step before ran, too.
        overlap: These seconds.
    """
    scheduler, forward, executing = own_times(
        stats.scheduler_time, stats.model_forward_time, stats.model_execute_time, overlap
    )
    left = max(duration, 0.0)
    parts: dict[str, float] = {}
    reported = {"scheduler": scheduler, "forward": forward}
    if executing is not None:
        reported["execute"] = executing - (forward or 0.0)
    for name, seconds in reported.items():
        if seconds is not None:
            known = min(max(seconds, 0.0), left) if math.isfinite(seconds) else 0.0
            parts[name] = known
            left -= known
    if executing is not None:
        parts["rest"] = left
    return parts


def gap_parts(gap: float, stats: StepStats, *, was_idle: bool) -> dict[str, float]:
    """Returns the seconds of each of `TIME_PARTS` between two steps.

    Args:
        gap: The seconds between them.
        stats: The figures of the later step.
        was_idle: Whether no request was unfinished in between.
    """
    is_stalled = has_work(stats) and not stats.num_prefill_tokens + stats.num_decode_tokens
    if was_idle or is_stalled:
        return {"idle": gap}
    paced = paced_seconds(stats, gap)
    return {"host": gap - paced, "paced": paced}


def paced_seconds(stats: StepStats, gap: float) -> float:
    """Returns the seconds before a step in which the engine waited on purpose, at most `gap`."""
    return min(max(stats.paced_time, 0.0), gap) if math.isfinite(stats.paced_time) else 0.0


def has_work(stats: StepStats) -> bool:
    """Returns whether requests were unfinished at the end of a step."""
    return stats.num_running > 0 or stats.num_waiting > 0 or bool(stats.num_swapped)


def has_graph(stats: StepStats) -> bool | None:
    """Returns whether a step ran as a CUDA graph; `None` if the engine does not report it."""
    return None if stats.cuda_graph is None else stats.cuda_graph.mode.upper() != "NONE"


def elapsed(start: float, end: float) -> float:
    """Returns the seconds between two times; 0 if a clock cannot have measured them."""
    seconds = end - start
    return seconds if 0 < seconds < math.inf else 0.0


def step_sums(amounts: Sequence[float], seconds: float) -> list[float]:
    """Returns what one step adds to the sums that costs are fitted to (`StepCosts.products`).

    Args:
        amounts: 1, prefill tokens, decode tokens and, if that is fitted, 1 without a CUDA graph.
        seconds: The duration of the step.
    """
    pairs = itertools.combinations_with_replacement(amounts, 2)
    return [*(one * other for one, other in pairs), *(seconds * amount for amount in amounts)]


def fit(sums: Sequence[float], given: Mapping[str, float] | None = None) -> dict[str, float]:
    """Fits the costs to steps: none is negative, and the sum of squared errors is the least.

    Args:
        sums: The sums of `step_sums`, or weighted ones.
        given: Costs that are not fitted, by their names in `COSTS`.

    Returns:
        Seconds by the names in `COSTS`, and of `without_graph`, without those that are 0.
    """
    rows = _products(sums)
    names, products, given = _COLUMNS[: len(rows)], sums[-len(rows) :], given or {}
    fixed = [given.get(name, 0.0) for name in names]
    free = [column for column, name in enumerate(names) if name not in given]
    targets = [
        products[i] - sum(own * cost for own, cost in zip(rows[i], fixed, strict=True))
        for i in free
    ]
    best = solve_non_negative([[rows[i][j] for j in free] for i in free], targets)
    fitted = {names[free[i]]: cost for i, cost in best.items() if cost >= _LEAST_COST}
    return {name: given[name] for name in names if name in given} | fitted


def errors(sums: Sequence[float], fitted: Sequence[str], squared: float) -> dict[str, float]:
    """Returns the standard errors of costs, in seconds.

    Args:
        sums: The sums of `step_sums` that they were fitted to.
        fitted: The names of those that were fitted and are not 0.
        squared: The sum of the squared errors of the steps, in seconds².
    """
    rows, columns = _products(sums), [COSTS.index(name) for name in fitted]
    variance = squared / max(sums[0] - len(fitted), 1)
    inverse = inverse_diagonal([[rows[i][j] for j in columns] for i in columns])
    return {
        name: math.sqrt(max(variance * part, 0.0))
        for name, part in zip(fitted, inverse, strict=True)
    }


def _products(sums: Sequence[float]) -> list[list[float]]:
    """Returns the sums of the products of each two amounts, a square matrix."""
    width = next(size for size in (3, 4) if len(sums) == size * (size + 3) // 2)
    rows, upper = [[0.0] * width for _ in range(width)], iter(sums)
    for row, column in itertools.combinations_with_replacement(range(width), 2):
        rows[row][column] = rows[column][row] = next(upper)
    return rows


def count_step(state: EngineData, step: Step) -> None:
    """Adds a step to those that the costs in the state are fitted to."""
    costs, stats = state.step_costs, step.stats
    seconds = elapsed(state.blocked.until, step.time)
    if not seconds or not 0 < stats.num_prefill_tokens + stats.num_decode_tokens < math.inf:
        return
    tokens = float(stats.num_prefill_tokens), float(stats.num_decode_tokens)
    amounts = 1.0, *tokens, float(has_graph(stats) is False)
    sums = step_sums(amounts, seconds - scheduling_time(step, state.blocked.until, seconds))
    if len(costs.products) == len(sums):
        sums = [a * _FADE + b for a, b in zip(costs.products, sums, strict=True)]
    costs = replace(costs, products=sums, num_steps=costs.num_steps + 1)
    wait = min(costs.num_fitted // 10 + 1, _MAX_STEPS_BETWEEN_FITS)
    if costs.num_steps >= max(MIN_STEPS, costs.num_fitted + wait):
        fitted = fit(sums)
        costs = replace(
            costs,
            per_step=fitted.get("step", 0.0),
            per_prefill_token=fitted.get("prefill", 0.0),
            per_decode_token=fitted.get("decode", 0.0),
            without_graph=fitted.get("without_graph", 0.0),
            num_fitted=costs.num_steps,
        )
    state.step_costs = costs
