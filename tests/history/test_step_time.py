"""The model of the times of steps."""

import itertools
import random
from statistics import median

import pytest
from msgspec.structs import replace

from seqtop.history import step_time
from seqtop.history.step_time import (
    MIN_STEPS_OF_A_KIND,
    Size,
    StepTimeError,
    fit,
    parse,
)
from seqtop.history.timed_steps import TimedStep
from seqtop.state.step_costs import COSTS, MIN_STEPS


def steps(count: int, *, noise: float = 0.0, seed: int = 1) -> list[TimedStep]:
    """Returns steps of 2 ms, 10 µs a prefill token and 100 µs a decode token.

    The next one starts 0.5 ms later, and 0.2 ms more if a request arrives, as for each tenth step.
    """
    draw, now, made = random.Random(seed), 100.0, []
    for number in range(count):
        prefill, decode = draw.choice((0, 0, 64, 128)), draw.randrange(1, 20)
        seconds = 2e-3 + 1e-5 * prefill + 1e-4 * decode
        seconds *= 1 + noise * draw.uniform(-1, 1)
        arrived = ["one"] if number % 10 == 0 else []
        now += 2e-4 * len(arrived)
        made.append(TimedStep(arrived, [], now, now + seconds, prefill, decode))
        now += seconds + 5e-4
    return made


def test_the_costs_of_a_step_are_found() -> None:
    model = fit(steps(200))
    assert model.per_step == pytest.approx(2e-3)
    assert model.per_prefill_token == pytest.approx(1e-5)
    assert model.per_decode_token == pytest.approx(1e-4)
    assert model.per_gap == pytest.approx(5e-4, abs=1e-6)
    assert model.per_arrival == pytest.approx(2e-4, abs=1e-6)
    assert model.step_seconds(Size(100, 10)) == pytest.approx(4e-3)
    assert model.held_out_error == pytest.approx(0.0, abs=1e-3)
    assert model.total_error == pytest.approx(0.0, abs=1e-3)
    assert model.uncertain == []


def test_a_given_time_is_not_fitted_and_is_no_extrapolation() -> None:
    model = fit(steps(200), {"prefill": 1e-3, "gap": 0.5})
    assert (model.per_prefill_token, model.per_gap) == (1e-3, 0.5)
    assert model.given == ["prefill", "gap"]
    assert not model.is_extrapolation(Size(10_000, 1))
    assert model.is_extrapolation(Size(0, 20))
    every = fit([], {"step": 1e-3, "prefill": 1e-5, "decode": 1e-4})
    assert every.step_seconds(Size(10, 10)) == pytest.approx(2.1e-3)


def test_the_errors_of_given_costs_are_those_of_every_step() -> None:
    """Each takes a second and begins two seconds after another; 3 s are predicted."""
    made = [TimedStep(["one"], [], 2.0 * number, 2.0 * number + 1.0, 0, 1) for number in range(30)]
    given = {"step": 1.0, "prefill": 0.0, "decode": 0.25, "gap": 0.5, "arrival": 1.25}
    model = fit(made, given)
    assert (model.held_out_error, model.total_error) == (0.5, 0.5)
    assert (model.per_wakeup, model.num_steps, model.largest) == (0.0, 30, Size(0, 1))
    assert model.gap_seconds(2) == 3.0
    assert fit(made, dict.fromkeys(given, 0.0)).total_error == pytest.approx(-1.0)
    free = fit(made, {name: given[name] for name in COSTS})
    assert (free.per_gap, free.per_arrival) == (0.0, 1.0), "a request arrives before each"
    quiet = [replace(own, arrived=[]) for own in made]
    assert fit(quiet, {name: given[name] for name in COSTS}).gap_seconds(1) == 1.0


def test_the_fewest_steps_of_a_model() -> None:
    fewest = [replace(own, num_decode_tokens=1) for own in steps(MIN_STEPS)]
    assert fit(fewest).num_steps == MIN_STEPS
    with pytest.raises(StepTimeError, match=f"^{MIN_STEPS - 1} steps are too few"):
        fit(fewest[1:])


def test_tokens_beyond_the_largest_step_are_an_extrapolation() -> None:
    model = fit(steps(200), {"decode": 1e-4})
    prefill, decode = model.largest
    assert not model.is_extrapolation(Size(prefill, decode + 1)), "its cost is given"
    assert model.is_extrapolation(Size(prefill + 1, decode))


def test_the_time_after_a_pause_is_that_from_the_arrival() -> None:
    made = steps(100)
    for before, after in itertools.pairwise(made):
        if before.is_idle_after or len(after.arrived) != 1:
            continue
        before.is_idle_after = True
        after.first_joined_at = after.start_time - 0.003
    model = fit(made)
    assert model.per_wakeup == pytest.approx(0.003)
    assert model.per_gap == pytest.approx(5e-4, abs=1e-6)


def test_steps_that_are_all_alike_leave_the_parts_of_their_times_uncertain() -> None:
    made = steps(100, noise=0.3)
    for number, step in enumerate(made):
        step.num_prefill_tokens = 64 if number % 2 else 0
        step.num_decode_tokens = 10 - (number % 2)
    assert fit(made).uncertain


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("prefil=1ms", "'prefil=1ms' is not like prefill=0.1ms: there are step, prefill, "),
        ("prefill", "'prefill' is not like"),
        ("prefill=fast", "prefill: 'fast' is not a time"),
        ("decode=-1ms", "decode: '-1ms' is not a time"),
        ("decode=1parsec", "decode: "),
    ],
)
def test_a_time_that_is_none_is_named(text: str, reason: str) -> None:
    assert parse("prefill=0.1ms, decode=20us,step=0") == {
        "prefill": pytest.approx(1e-4),
        "decode": pytest.approx(2e-5),
        "step": 0.0,
    }
    with pytest.raises(StepTimeError) as caught:
        parse(text)
    assert reason in str(caught.value)


def test_noise_is_reported_as_the_error_of_steps_that_were_left_out() -> None:
    model = fit(steps(2_000, noise=0.2))
    assert model.held_out_error == pytest.approx(0.09, abs=0.03)
    assert model.total_error == pytest.approx(0.0, abs=0.02)
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
        step.num_prefill_tokens = 16 if number < MIN_STEPS_OF_A_KIND - 1 else 0
    with pytest.raises(StepTimeError, match="7 steps with prefill tokens do not tell the cost"):
        fit(without_prefill)
    assert fit(without_prefill, {"prefill": 1e-5}).per_prefill_token == 1e-5


def test_times_that_no_clock_measured_are_refused() -> None:
    odd = steps(200)
    odd[7] = replace(odd[7], end_time=1e308)
    with pytest.raises(StepTimeError, match="longer than a clock can measure"):
        fit(odd)


def test_the_held_out_error_is_that_of_the_steps_that_were_left_out() -> None:
    right = steps(200)
    late = [
        replace(
            step, start_time=step.start_time + 1e-3 * sum(number > own for own in range(0, 200, 5))
        )
        for number, step in enumerate(right)
    ]
    given = {"step": 2e-3, "prefill": 1e-5, "decode": 1e-4, "gap": 5e-4, "arrival": 2e-4}
    assert step_time._held_out_error(right, given)[0] == pytest.approx(0.0, abs=1e-9)
    left_out = [
        late[number + 1].start_time - late[number].start_time for number in range(0, 199, 5)
    ]
    error, total = step_time._held_out_error(late, given)
    assert error == pytest.approx(median(1e-3 / seconds for seconds in left_out))
    assert total == pytest.approx(-1e-3 * len(left_out) / sum(left_out))
    at_once = [replace(own, start_time=1.0) for own in right]
    assert step_time._held_out_error(at_once[:2], given) == (None, None)
