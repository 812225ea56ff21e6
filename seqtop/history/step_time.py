"""A model of the time from the start of a step to the start of the next one.

It is fitted to recorded runs. A step takes ``step + prefill * prefill tokens + decode * decode
tokens`` seconds. The next one starts ``gap`` seconds later, and ``arrival`` seconds more for each
request that arrived meanwhile; after a pause without requests, ``wake-up`` seconds after the first
arrival. No coefficient is negative. Larger models are not better on a held-out part of the runs
that were tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from seqtop.history.timed_steps import TimedStep
from seqtop.state import step_costs
from seqtop.state.filter import FilterError, quantity
from seqtop.state.percentiles import median
from seqtop.state.slo import words
from seqtop.state.step_costs import COSTS, MIN_STEPS
from seqtop.text import format as fmt

MIN_STEPS_OF_A_KIND = 8
"""Steps with tokens of a kind that the coefficient of this kind needs."""
MAX_EXTRAPOLATED = 0.2
"""The share of the predicted time in steps larger than the recorded ones above which times say
nothing."""
NAMES: Final = (*COSTS, "gap", "arrival", "wake-up")
"""The names of the coefficients, for `--step-time`."""
_HELD_OUT = 5
"""Each fifth step is left out of the fit that the error is measured with."""
_LARGEST_ERROR = 0.25
"""The standard error, relative to a coefficient, above which it is named as uncertain."""
_CLOCK_SECONDS = 1e-9


class StepTimeError(Exception):
    """The times of steps are not known; the message is one sentence for the user."""


class Size(NamedTuple):
    """The size of a step."""

    num_prefill_tokens: int
    num_decode_tokens: int


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds of a step by its size, and those to the next step."""

    per_step: float
    per_prefill_token: float
    per_decode_token: float
    per_gap: float = 0.0
    per_arrival: float = 0.0
    per_wakeup: float = 0.0
    given: list[str] = []
    """The coefficients that the user has given; the others are fitted."""
    uncertain: list[str] = []
    """The fitted coefficients that the recorded steps do not determine well."""
    held_out_error: float | None = None
    """The median relative error from start to start, for steps that were not part of the fit."""
    total_error: float | None = None
    """The relative error of the sum of these times; negative if they are predicted too short."""
    num_steps: int = 0
    """The steps of the fit."""
    largest: Size = Size(0, 0)
    """The most tokens of each kind that a recorded step computed."""

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

    def is_extrapolation(self, size: Size) -> bool:
        """Returns whether a step is larger than all recorded ones, in a fitted coefficient."""
        return any(
            tokens > most and name not in self.given
            for tokens, most, name in zip(size, self.largest, ("prefill", "decode"), strict=True)
        )


def parse(text: str) -> dict[str, float]:
    """Parses coefficients such as `prefill=0.1ms,decode=20us`, separated by commas or spaces.

    The default unit is seconds.

    Raises:
        StepTimeError: The text is invalid.
    """
    given: dict[str, float] = {}
    for word in words(text):
        name, equals, value = word.partition("=")
        if not equals or name not in NAMES:
            raise StepTimeError(f"{word!r} is not like prefill=0.1ms: there are {', '.join(NAMES)}")
        try:
            seconds = quantity(value)
        except FilterError as error:
            raise StepTimeError(f"{name}: {error}") from error
        if seconds is None or seconds < 0:
            raise StepTimeError(f"{name}: {value!r} is not a time, such as 0.1ms")
        given[name] = seconds
    return given


def fit(steps: Sequence[TimedStep], given: Mapping[str, float] | None = None) -> StepTime:
    """Fits the model to the steps of one or several runs.

    Args:
        steps: The steps of each run, in order.
        given: Coefficients that are not fitted, by name.

    Raises:
        StepTimeError: There are too few steps, or too few of a kind, or no clock measured their
            times.
    """
    given = given or {}
    timed = [step for step in steps if step.num_prefill_tokens or step.num_decode_tokens]
    if not given.keys() >= {*COSTS}:
        _check_amounts(timed, given)
    try:
        coefficients, uncertain = _fit(steps, given)
        median, total = _held_out_error(steps, given)
    except OverflowError as error:
        raise StepTimeError("the recorded steps take longer than a clock can measure") from error
    return StepTime(
        per_step=coefficients["step"],
        per_prefill_token=coefficients["prefill"],
        per_decode_token=coefficients["decode"],
        per_gap=coefficients["gap"],
        per_arrival=coefficients["arrival"],
        per_wakeup=coefficients["wake-up"],
        given=[*given],
        uncertain=uncertain,
        held_out_error=median,
        total_error=total,
        num_steps=len(timed),
        largest=Size(
            max((step.num_prefill_tokens for step in timed), default=0),
            max((step.num_decode_tokens for step in timed), default=0),
        ),
    )


def _check_amounts(timed: Sequence[TimedStep], given: Mapping[str, float]) -> None:
    """Checks that there are steps of each kind, so that no tokens seem to cost nothing."""
    if len(timed) < MIN_STEPS:
        raise StepTimeError(
            f"{fmt.plural(len(timed), 'step')} are too few for a model of their times, which needs"
            f" {MIN_STEPS}; --calibrate takes those of another recording, --step-time the times"
        )
    for name, count in (
        ("prefill", sum(step.num_prefill_tokens > 0 for step in timed)),
        ("decode", sum(step.num_decode_tokens > 0 for step in timed)),
    ):
        if count < MIN_STEPS_OF_A_KIND and name not in given:
            raise StepTimeError(
                f"{fmt.plural(count, 'step')} with {name} tokens do not tell the cost of one, which"
                f" needs {MIN_STEPS_OF_A_KIND}; --calibrate takes those of another recording,"
                f" --step-time {name}=… the cost"
            )


def _fit(
    steps: Sequence[TimedStep], given: Mapping[str, float]
) -> tuple[dict[str, float], list[str]]:
    """Returns the coefficients, and the names of those that are uncertain."""
    timed = [step for step in steps if step.num_prefill_tokens or step.num_decode_tokens]
    between = _between_steps(steps)
    costs = dict.fromkeys(COSTS, 0.0) | {name: given[name] for name in COSTS if name in given}
    free = [name for name in COSTS if name not in given]
    if not timed or not free:
        return between | costs | dict(given), []
    rows = [
        step_costs.step_sums(
            (1.0, float(step.num_prefill_tokens), float(step.num_decode_tokens)), step.seconds
        )
        for step in timed
    ]
    sums = [math.fsum(column) for column in zip(*rows, strict=True)]
    costs |= step_costs.fit(sums, given)
    squared = math.fsum((step.seconds - _seconds(step, costs)) ** 2 for step in timed)
    errors = step_costs.errors(sums, [name for name in free if costs[name]], squared)
    uncertain = [
        name for name in free if not errors.get(name, math.inf) <= _LARGEST_ERROR * costs[name]
    ]
    return between | costs | dict(given), uncertain


def _seconds(step: TimedStep, costs: Mapping[str, float]) -> float:
    """Returns the duration of a step by the costs."""
    return (
        costs["step"]
        + costs["prefill"] * step.num_prefill_tokens
        + costs["decode"] * step.num_decode_tokens
    )


def _between_steps(steps: Sequence[TimedStep]) -> dict[str, float]:
    """Returns the coefficients of the time between steps.

    They are medians: a pause of the host is no part of what each step costs.
    """
    quiet: list[float] = []
    busy: list[tuple[int, float]] = []
    pauses: list[float] = []
    for before, after in itertools.pairwise(steps):
        seconds, count = after.start_time - before.end_time, len(after.arrived)
        if before.is_last or seconds < 0:
            continue
        if before.is_idle_after:
            if after.first_joined_at is not None:
                pauses.append(max(after.start_time - after.first_joined_at, 0.0))
        elif count:
            busy.append((count, seconds))
        else:
            quiet.append(seconds)
    gap = median(quiet) or 0.0
    arrival = median(max(seconds - gap, 0.0) / count for count, seconds in busy) or 0.0
    return {"gap": gap, "arrival": arrival, "wake-up": median(pauses) or 0.0}


def _held_out_error(
    steps: Sequence[TimedStep], given: Mapping[str, float]
) -> tuple[float | None, float | None]:
    """Returns the median relative error of held-out times from start to start, and of their sum."""
    kept = [step for index, step in enumerate(steps) if index % _HELD_OUT]
    coefficients, _ = _fit(kept, given)
    # The gaps of all steps: those of neighbours are none if steps between them are left out.
    coefficients |= _between_steps(steps) | dict(given)
    errors: list[float] = []
    predicted, actual = 0.0, 0.0
    for index, (before, after) in enumerate(itertools.pairwise(steps)):
        seconds = after.start_time - before.start_time
        is_held_out = index % _HELD_OUT == 0 and not before.is_idle_after and not before.is_last
        if not is_held_out or seconds <= 0:
            continue
        guess = (
            _seconds(before, coefficients)
            + coefficients["gap"]
            + coefficients["arrival"] * len(after.arrived)
        )
        errors.append(abs(guess - seconds) / seconds)
        predicted += guess
        actual += seconds
    if not errors:
        return None, None
    return median(errors), predicted / actual - 1
