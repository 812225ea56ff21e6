"""The model of the times of steps."""

import random

import pytest

from seqtop.whatif.step_time import (
    MIN_PREFILL_STEPS,
    MIN_STEPS,
    Size,
    StepTimeError,
    fit,
    non_negative_least_squares,
)
from seqtop.whatif.workload import StepInputs


def steps(count: int, *, noise: float = 0.0, seed: int = 1) -> list[StepInputs]:
    """Returns steps of 2 ms, 10 µs a prefill token and 100 µs a decode token."""
    draw, now, made = random.Random(seed), 100.0, []
    for number in range(count):
        prefill, decode = draw.choice((0, 0, 64, 128)), draw.randrange(1, 20)
        seconds = 2e-3 + 1e-5 * prefill + 1e-4 * decode
        seconds *= 1 + noise * draw.uniform(-1, 1)
        made.append(StepInputs([], [], now, now + seconds, prefill, decode))
        now += seconds + 5e-4
        if number % 10 == 0:
            made[-1].arrived.append("one")
            now += 2e-4
    return made


def test_the_costs_of_a_step_are_found() -> None:
    model = fit(steps(200))
    assert model.per_step == pytest.approx(2e-3)
    assert model.per_prefill_token == pytest.approx(1e-5)
    assert model.per_decode_token == pytest.approx(1e-4)
    assert model.per_gap == pytest.approx(5e-4, abs=1e-6)
    assert model.held_out_error == pytest.approx(0.0, abs=1e-6)
    assert model.step_seconds(Size(100, 10)) == pytest.approx(4e-3)


def test_noise_is_reported_as_the_error_of_steps_that_were_left_out() -> None:
    model = fit(steps(2_000, noise=0.2))
    assert model.held_out_error == pytest.approx(0.1, abs=0.03)
    assert model.total_error is not None
    assert model.total_error < 0.02
    assert model.per_step == pytest.approx(2e-3, rel=0.1)


def test_a_step_beyond_the_recorded_sizes_is_an_extrapolation() -> None:
    model = fit(steps(100))
    assert not model.is_extrapolation(Size(128, 19))
    assert model.is_extrapolation(Size(129, 1))
    assert model.is_extrapolation(Size(0, 20))


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(StepTimeError, match="19 steps are too few"):
        fit(steps(MIN_STEPS - 1))
    without_prefill = steps(100)
    for number, step in enumerate(without_prefill):
        step.num_prefill_tokens = 16 if number < MIN_PREFILL_STEPS - 1 else 0
    with pytest.raises(StepTimeError, match="7 steps with prefill tokens are too few"):
        fit(without_prefill).check_prefill()


def test_no_coefficient_is_negative() -> None:
    rows = [(1.0, float(x), float(-x + x % 3)) for x in range(30)]
    values = [5.0 - 0.1 * x for x in range(30)]
    coefficients = non_negative_least_squares(rows, values)
    assert min(coefficients) >= 0

    # Against a search on a grid, none is better.
    def error(given: tuple[float, ...]) -> float:
        return sum(
            (sum(a * b for a, b in zip(row, given, strict=True)) - value) ** 2
            for row, value in zip(rows, values, strict=True)
        )

    grid = [(a / 4, b / 20, c / 20) for a in range(30) for b in range(10) for c in range(10)]
    assert error(coefficients) <= min(map(error, grid)) + 1e-9


def test_columns_that_depend_on_each_other_do_no_harm() -> None:
    rows = [(1.0, 2.0, 4.0)] * 10
    coefficients = non_negative_least_squares(rows, [8.0] * 10)
    assert sum(a * b for a, b in zip(rows[0], coefficients, strict=True)) == pytest.approx(8.0)
