"""A model of the time that a step takes, fitted to a recorded run.

A step takes ``a + b * prefill tokens + c * decode tokens`` seconds, and the time to the next step
``g`` seconds and ``h`` for each request that arrived meanwhile. No coefficient is negative. Larger
models are not better on a held-out part of the runs that were tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from seqtop.whatif.workload import StepInputs

MIN_STEPS = 20
"""Steps that a fit needs."""
MIN_PREFILL_STEPS = 8
"""Steps with prefill tokens that a coefficient for these needs."""
_HELD_OUT = 5
"""Each fifth step is left out of the fit that the error is measured with."""
_CLOCK_SECONDS = 1e-9


class StepTimeError(Exception):
    """The times of a recording do not determine a model; the message is one sentence."""


class Size(NamedTuple):
    """The size of a step."""

    num_prefill_tokens: int
    num_decode_tokens: int


class StepTime(msgspec.Struct, frozen=True):
    """The seconds of a step by its size, and of the gap to the next one."""

    per_step: float
    per_prefill_token: float
    per_decode_token: float
    per_gap: float
    per_arrival: float
    held_out_error: float | None
    """The median relative error of single steps that were not part of the fit."""
    total_error: float | None
    """The relative error of the sum of those steps."""
    largest: Size = Size(0, 0)
    """The most tokens of each kind that a recorded step computed."""
    num_prefill_steps: int = 0

    def step_seconds(self, size: Size) -> float:
        """Returns the duration of a step."""
        seconds = (
            self.per_step
            + self.per_prefill_token * size.num_prefill_tokens
            + self.per_decode_token * size.num_decode_tokens
        )
        return max(seconds, _CLOCK_SECONDS)

    def gap_seconds(self, num_arrived: int) -> float:
        """Returns the time from the end of a step to the next one, if there is work."""
        return self.per_gap + self.per_arrival * num_arrived

    def check_prefill(self) -> None:
        """Checks that the cost of prefill tokens is known.

        Raises:
            StepTimeError: Too few steps have some, so that they might seem to cost nothing.
        """
        if self.num_prefill_steps < MIN_PREFILL_STEPS:
            raise StepTimeError(
                f"{self.num_prefill_steps} steps with prefill tokens are too few to know what those"
                f" cost; {MIN_PREFILL_STEPS} are needed"
            )

    def is_extrapolation(self, size: Size) -> bool:
        """Returns whether a step is larger than all recorded ones."""
        return any(given > most for given, most in zip(size, self.largest, strict=True))


def fit(steps: Sequence[StepInputs]) -> StepTime:
    """Fits the model to the steps of a run.

    Raises:
        StepTimeError: There are too few steps.
    """
    timed = [step for step in steps if step.num_prefill_tokens or step.num_decode_tokens]
    if len(timed) < MIN_STEPS:
        raise StepTimeError(
            f"{len(timed)} steps are too few for a model of their times; {MIN_STEPS} are needed"
        )
    rows = [(1.0, float(s.num_prefill_tokens), float(s.num_decode_tokens)) for s in timed]
    seconds = [max(step.end_time - step.start_time, 0.0) for step in timed]
    per_step, per_prefill, per_decode = non_negative_least_squares(rows, seconds)
    gap, per_arrival = _fit_gaps(steps)
    median, total = _held_out_error(rows, seconds)
    return StepTime(
        per_step,
        per_prefill,
        per_decode,
        per_gap=gap,
        per_arrival=per_arrival,
        held_out_error=median,
        total_error=total,
        largest=Size(
            max(step.num_prefill_tokens for step in timed),
            max(step.num_decode_tokens for step in timed),
        ),
        num_prefill_steps=sum(step.num_prefill_tokens > 0 for step in timed),
    )


def _fit_gaps(steps: Sequence[StepInputs]) -> tuple[float, float]:
    """Returns the seconds of a gap between steps, and those that each arrival in it adds."""
    pairs = [
        (max(after.start_time - before.end_time, 0.0), len(after.arrived))
        for before, after in itertools.pairwise(steps)
        if not before.is_idle_after
    ]
    if not pairs:
        return 0.0, 0.0
    # A median for the gap: a pause of the host is no part of what each step costs.
    quiet = sorted(seconds for seconds, num_arrived in pairs if not num_arrived)
    gap = quiet[len(quiet) // 2] if quiet else 0.0
    busy = [(float(count), seconds - gap) for seconds, count in pairs if count]
    if not busy:
        return gap, 0.0
    rates = sorted(max(seconds, 0.0) / count for count, seconds in busy)
    return gap, rates[len(rates) // 2]


def _held_out_error(
    rows: Sequence[tuple[float, ...]], seconds: Sequence[float]
) -> tuple[float | None, float | None]:
    """Returns the median relative error of held-out steps, and that of their sum."""
    held = range(0, len(rows), _HELD_OUT)
    kept = [index for index in range(len(rows)) if index % _HELD_OUT]
    coefficients = non_negative_least_squares(
        [rows[index] for index in kept], [seconds[index] for index in kept]
    )
    predicted = [sum(map(float.__mul__, coefficients, rows[index]), start=0.0) for index in held]
    errors = sorted(
        abs(guess - seconds[index]) / seconds[index]
        for guess, index in zip(predicted, held, strict=True)
        if seconds[index] > 0
    )
    whole = math.fsum(seconds[index] for index in held)
    if not errors or whole <= 0:
        return None, None
    return errors[len(errors) // 2], abs(math.fsum(predicted) - whole) / whole


def non_negative_least_squares(
    rows: Sequence[tuple[float, ...]], values: Sequence[float]
) -> tuple[float, ...]:
    """Returns the coefficients, none negative, with the least sum of squared errors.

    For the few columns of this model, each set of columns is solved by its normal equations.
    """
    width = len(rows[0])
    products = [
        [math.fsum(row[i] * row[j] for row in rows) for j in range(width)] for i in range(width)
    ]
    targets = [
        math.fsum(row[i] * value for row, value in zip(rows, values, strict=True))
        for i in range(width)
    ]
    best, least = (0.0,) * width, 0.0  # squared error, less that of all zeros
    for count in range(1, width + 1):
        for columns in itertools.combinations(range(width), count):
            solution = _solve(
                [[products[i][j] for j in columns] for i in columns], [targets[i] for i in columns]
            )
            if solution is None or min(solution) < 0:
                continue
            # At a solution of the normal equations, the error falls by the product with the target.
            error = -math.fsum(
                value * targets[i] for value, i in zip(solution, columns, strict=True)
            )
            if error < least:
                least = error
                given = dict(zip(columns, solution, strict=True))
                best = tuple(given.get(i, 0.0) for i in range(width))
    return best


def _solve(matrix: list[list[float]], targets: list[float]) -> list[float] | None:
    """Solves linear equations by elimination; `None` if they are singular."""
    rows = [[*row, target] for row, target in zip(matrix, targets, strict=True)]
    size = len(rows)
    for column in range(size):
        pivot = max(range(column, size), key=lambda index: abs(rows[index][column]))
        if abs(rows[pivot][column]) < 1e-12 * max(abs(matrix[column][column]), 1e-300):
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for index in range(size):
            if index != column:
                factor = rows[index][column] / rows[column][column]
                rows[index] = [
                    value - factor * other
                    for value, other in zip(rows[index], rows[column], strict=True)
                ]
    return [rows[index][size] / rows[index][index] for index in range(size)]
