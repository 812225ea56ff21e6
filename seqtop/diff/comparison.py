"""The first difference between two runs, its explanation, and the figures of both.

The steps of both runs are compared in order, and the requests by their ids, or by their order of
arrival if the runs have no id in common. At the first step that differs, the parts of a step are
compared in the order in which a scheduler decides them: what it was given (arrivals, ends), who was
preempted, who was admitted, how many tokens each got, who decoded; and then the sampled tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from seqtop.diff.run import Run, StepDecisions
from seqtop.state.wait_causes import CAUSES, cause_in_words
from seqtop.text import format as fmt
from seqtop.wire.messages import EngineInfo

DifferenceKind: TypeAlias = Literal[
    "settings",
    "arrivals",
    "ends",
    "preemption",
    "admission order",
    "admission",
    "prefix hits",
    "token budget",
    "batch",
    "tokens",
    "length",
]
"""The kind of the first difference."""

_NOT_COMPARED = {
    *("incarnation", "engine_id", "start_time", "control", "redacted", "predicted_from"),
    "scheduler_settings",  # each of them is compared by its own name
}
"""Fields of `EngineInfo` that differ between equal runs, and that of further settings."""
_MAX_NAMED = 4


class Setting(msgspec.Struct):
    """A setting of the engine in which the runs differ."""

    name: str
    a: object
    b: object


class Difference(msgspec.Struct):
    """The first step in which two runs differ."""

    kind: DifferenceKind
    a: str
    """The decision of the first run, in one sentence."""
    b: str
    step_a: int
    """The number of the step in the first run; -1 if the run has ended before."""
    step_b: int
    cause: str
    """The explanation, as far as the recordings have one."""
    request_ids: list[str] = []
    """The requests concerned, as the first run names them."""


class Figure(msgspec.Struct):
    """A figure of both runs."""

    name: str
    unit: str
    a: float | None
    b: float | None


class Comparison(msgspec.Struct):
    """The result of comparing two runs."""

    settings: list[Setting]
    first: Difference | None
    """The first decision that differs; `None` if all are equal."""
    figures: list[Figure]
    num_equal_steps: int
    """Steps before the first difference."""
    aligned_by: Literal["request id", "order of arrival"]
    num_gaps: int = 0
    """Gaps in both recordings together."""

    @property
    def differs(self) -> bool:
        """True if the runs differ in a decision or in a setting."""
        return self.first is not None or bool(self.settings)


def compare(a: Run, b: Run) -> Comparison:
    """Compares two runs."""
    aligned = _Alignment(a, b)
    settings = _settings(a.info, b.info)
    num_equal = aligned.num_equal_steps()
    first = None
    if num_equal < max(len(a.steps), len(b.steps)):
        first = _difference(aligned, num_equal, settings)
    return Comparison(
        settings,
        first,
        _figures(a, b),
        num_equal,
        "request id" if aligned.by_id else "order of arrival",
        a.num_gaps + b.num_gaps,
    )


class _Alignment:
    """Two runs, and the requests of the second by their numbers in the first."""

    def __init__(self, a: Run, b: Run) -> None:
        self.a, self.b = a, b
        numbers = [a.number(request.request_id) for request in b.requests]
        self.by_id = any(number is not None for number in numbers)
        """True if the runs have ids in common."""
        unknown = len(a.requests)
        self._of_b = {
            number: (unknown + number if of_a is None else of_a) if self.by_id else number
            for number, of_a in enumerate(numbers)
        }
        self._is_identity = all(number == of_a for number, of_a in self._of_b.items())

    def num_equal_steps(self) -> int:
        """Returns the number of steps before the first that differs."""
        for num, (one, other) in enumerate(zip(self.a.steps, self.b.steps, strict=False)):
            if _decisions(one) != _decisions(self.of_b(other)):
                return num
            if any(self.find_changed(number) for number in one.arrived):
                return num
        return min(len(self.a.steps), len(self.b.steps))

    def find_changed(self, number: int) -> tuple[str, int, int] | None:
        """Returns a property of a request in which the runs differ, with its values."""
        one = self.a.requests[number]
        of_b = self.b.number(one.request_id) if self.by_id else number
        if of_b is None:
            return None
        other = self.b.requests[of_b]
        for name in ("num_prompt_tokens", "priority"):
            values = getattr(one, name), getattr(other, name)
            if values[0] != values[1]:
                return name, *values
        return None

    def of_b(self, step: StepDecisions) -> StepDecisions:
        """Returns a step of the second run with the numbers of the first."""
        if self._is_identity:
            return step
        of_b = self._of_b
        return step._replace(
            arrived=tuple(of_b[number] for number in step.arrived),
            ended=tuple(sorted((of_b[number], status) for number, status in step.ended)),
            preempted=tuple(
                (of_b[number], None if for_ is None else of_b[for_], mode)
                for number, for_, mode in step.preempted
            ),
            admitted=tuple((of_b[number], cached) for number, cached in step.admitted),
            chunks=tuple((of_b[number], chunk) for number, chunk in step.chunks),
            decodes=tuple(of_b[number] for number in step.decodes),
            waits=tuple((of_b[number], cause, missing) for number, cause, missing in step.waits),
        )

    def name(self, number: int) -> str:
        """Returns the id of a request in the first run, or in the second if only that has it."""
        requests = self.a.requests
        if number < len(requests):
            return requests[number].request_id
        return self.b.requests[number - len(requests) if self.by_id else number].request_id

    def names(self, numbers: Sequence[int]) -> str:
        """Returns the ids of some requests, and the number of further ones."""
        if not numbers:
            return "none"
        more = f" and {len(numbers) - _MAX_NAMED} more" if len(numbers) > _MAX_NAMED else ""
        return ", ".join(map(self.name, numbers[:_MAX_NAMED])) + more


def _decisions(step: StepDecisions) -> tuple[object, ...]:
    return step[2:9]  # from `arrived` to `tokens`


class _Sides(NamedTuple):
    """One step of both runs, with the numbers of the first."""

    a: StepDecisions
    b: StepDecisions


def _settings(a: EngineInfo | None, b: EngineInfo | None) -> list[Setting]:
    if a is None or b is None:
        return []
    names = [*EngineInfo.__struct_fields__, *a.scheduler_settings, *b.scheduler_settings]
    return [
        Setting(name, *values)
        for name in dict.fromkeys(names)
        if name not in _NOT_COMPARED
        and (values := (_setting(a, name), _setting(b, name)))[0] != values[1]
    ]


def _setting(info: EngineInfo, name: str) -> object:
    """Returns the value of a setting; `None` if the engine does not give it."""
    if name in EngineInfo.__struct_fields__:
        return getattr(info, name)
    return info.scheduler_settings.get(name)


def _difference(aligned: _Alignment, index: int, settings: list[Setting]) -> Difference:
    if index >= min(len(aligned.a.steps), len(aligned.b.steps)):
        return _length(aligned, index)
    sides = _Sides(aligned.a.steps[index], aligned.of_b(aligned.b.steps[index]))
    for find in (_arrivals, _ends, _preemptions, _admissions, _chunks, _decodes):
        if difference := find(aligned, sides):
            break
    else:
        difference = _tokens(aligned, sides)
    if settings:
        changed = ", ".join(f"{setting.name} {setting.a} → {setting.b}" for setting in settings)
        difference.cause = f"the settings differ: {changed}; {difference.cause}"
    return difference


def _length(aligned: _Alignment, index: int) -> Difference:
    longer = aligned.a if len(aligned.a.steps) > index else aligned.b
    num_a, num_b = (fmt.plural(len(run.steps), "step") for run in (aligned.a, aligned.b))
    step = longer.steps[index].step
    is_a = longer is aligned.a
    return Difference(
        "length",
        f"the run has {num_a}",
        f"the run has {num_b}",
        step if is_a else -1,
        -1 if is_a else step,
        "one recording goes on after the end of the other",
    )


def _found(
    aligned: _Alignment,
    kind: DifferenceKind,
    sides: _Sides,
    texts: tuple[str, str],
    cause: str,
    numbers: Sequence[int],
) -> Difference:
    names = [aligned.name(number) for number in dict.fromkeys(numbers)]
    return Difference(kind, *texts, sides.a.step, sides.b.step, cause, names[: 2 * _MAX_NAMED])


def _arrivals(aligned: _Alignment, sides: _Sides) -> Difference | None:
    a, b = sides.a.arrived, sides.b.arrived
    if a != b:
        texts = (
            f"arrived before this step: {aligned.names(a)}",
            f"arrived before this step: {aligned.names(b)}",
        )
        same = {*a} == {*b}
        cause = (
            "the requests arrived in another order"
            if same
            else "other requests had arrived by then"
        )
        return _found(aligned, "arrivals", sides, texts, cause, [*a, *b])
    for number in a:
        if changed := aligned.find_changed(number):
            name, *values = changed
            id_ = aligned.name(number)
            texts = (f"{id_} arrived with {name} {values[0]}", f"{id_}: {name} {values[1]}")
            cause = f"the requests are not the same: their {name} differs"
            return _found(aligned, "arrivals", sides, texts, cause, [number])
    return None


def _ends(aligned: _Alignment, sides: _Sides) -> Difference | None:
    a, b = sides.a.ended, sides.b.ended
    if {*a} == {*b}:
        return None

    def text(ended: tuple[tuple[int, str], ...]) -> str:
        return "ended before this step: " + (
            ", ".join(f"{aligned.name(number)} ({status})" for number, status in ended[:_MAX_NAMED])
            or "none"
        )

    cause = "a request ended, or was aborted, at another time or for another reason"
    numbers = [number for number, _ in {*a} ^ {*b}]
    return _found(aligned, "ends", sides, (text(a), text(b)), cause, sorted(numbers))


def _preemptions(aligned: _Alignment, sides: _Sides) -> Difference | None:
    a, b = sides.a.preempted, sides.b.preempted
    if a == b:
        return None

    def text(preempted: tuple[tuple[int, int | None, str], ...]) -> str:
        return "preempted " + (
            ", ".join(
                f"{aligned.name(number)} by {mode}"
                + ("" if for_ is None else f" for {aligned.name(for_)}")
                for number, for_, mode in preempted[:_MAX_NAMED]
            )
            or "none"
        )

    available = [side.stats.num_free_blocks + (side.stats.num_cached_blocks or 0) for side in sides]
    if a and b:
        modes = {mode for _, _, mode in a}, {mode for _, _, mode in b}
        cause = (
            "the preemption mode differs"
            if modes[0] != modes[1]
            else "the policy that chooses the request to preempt differs"
        )
    else:
        cause = (
            "one run lacked blocks where the other did not: after the step,"
            f" {available[0]} and {available[1]} blocks were available"
        )
    return _found(
        aligned,
        "preemption",
        sides,
        (text(a), text(b)),
        cause,
        [number for number, _, _ in (*a, *b)],
    )


def _admissions(aligned: _Alignment, sides: _Sides) -> Difference | None:
    a, b = dict(sides.a.admitted), dict(sides.b.admitted)
    numbers = [*a], [*b]
    if a == b and numbers[0] == numbers[1]:
        return None
    texts = tuple(
        f"admitted {aligned.names(admitted)}{_waits(aligned, side)}"
        for admitted, side in zip(numbers, sides, strict=True)
    )
    only_a = [number for number in a if number not in b]
    only_b = [number for number in b if number not in a]
    concerned = [*only_a, *only_b]
    if only_a and only_b:
        cause = "the order of the waiting queue differs"
        kind: DifferenceKind = "admission order"
    elif concerned:
        kind = "admission"
        refused = sides.b if only_a else sides.a
        cause = _refusal(aligned, concerned[0], refused)
    elif numbers[0] != numbers[1]:
        kind, cause = "admission order", "the order of the waiting queue differs"
        concerned = numbers[0]
    else:
        concerned = [number for number in a if a[number] != b[number]]
        first = concerned[0]
        kind = "prefix hits"
        cause = (
            f"{aligned.name(first)} found {fmt.plural(a[first], 'token')} in the prefix cache in"
            f" the one run and {b[first]:,} in the other"
        )
    return _found(aligned, kind, sides, (texts[0], texts[1]), cause, concerned)


def _waits(aligned: _Alignment, step: StepDecisions) -> str:
    return "".join(
        f"; {aligned.name(number)} was left waiting: {CAUSES[cause].limited(None)}"
        for number, cause, _ in islice(step.waits, _MAX_NAMED)
    )


def _refusal(aligned: _Alignment, number: int, step: StepDecisions) -> str:
    name, stats = aligned.name(number), step.stats
    for waiting, cause, num_missing in step.waits:
        if waiting == number:
            missing = CAUSES[cause].missing(num_missing)
            lacks = f" ({missing})" if missing else ""
            return f"the other run left {name} waiting: {CAUSES[cause].limited(None)}{lacks}"
    if step.waits:
        return f"in the other run {name} was behind {aligned.name(step.waits[0][0])}"
    available = stats.num_free_blocks + (stats.num_cached_blocks or 0)
    return (
        f"the other run did not admit {name} and gave no reason;"
        f" {fmt.plural(available, 'block')} were available and {stats.num_running} sequences ran"
    )


def _chunks(aligned: _Alignment, sides: _Sides) -> Difference | None:
    a, b = sides.a.chunks, sides.b.chunks
    if a == b:
        return None
    sizes = dict(a), dict(b)
    differing = [
        number
        for number in {**sizes[0], **sizes[1]}
        if sizes[0].get(number) != sizes[1].get(number)
    ]
    if not differing:
        return _in_another_order(aligned, sides, [number for number, _ in a])
    first = differing[0]
    totals = [
        side.stats.num_prefill_tokens + side.stats.num_decode_tokens for side in (sides.a, sides.b)
    ]
    texts = tuple(
        f"computed {size.get(first, 0):,} tokens of {aligned.name(first)}, {total:,} in total"
        for size, total in zip(sizes, totals, strict=True)
    )
    most = [
        max(
            (step.stats.num_prefill_tokens + step.stats.num_decode_tokens for step in run.steps),
            default=0,
        )
        for run in (aligned.a, aligned.b)
    ]
    cause = (
        f"the token budget of a step differs: no step computed more than {most[0]:,} and"
        f" {most[1]:,} tokens"
        if most[0] != most[1]
        else "the tokens of the step were divided in another way"
    )
    return _found(aligned, "token budget", sides, (texts[0], texts[1]), cause, differing)


def _decodes(aligned: _Alignment, sides: _Sides) -> Difference | None:
    a, b = sides.a.decodes, sides.b.decodes
    if a == b:
        return None
    if {*a} == {*b}:
        return _in_another_order(aligned, sides, a)
    only_a, only_b = sorted({*a} - {*b}), sorted({*b} - {*a})
    texts = (
        f"decoded {fmt.plural(len(a), 'request')}, {aligned.names(only_a)} only here",
        f"decoded {fmt.plural(len(b), 'request')}, {aligned.names(only_b)} only here",
    )
    cause = "the requests in the batch differ"
    return _found(aligned, "batch", sides, texts, cause, [*only_a, *only_b])


def _in_another_order(aligned: _Alignment, sides: _Sides, numbers: Sequence[int]) -> Difference:
    texts = ("ran the same requests", "ran them in another order")
    return _found(aligned, "batch", sides, texts, "the order of the batch differs", numbers)


def _tokens(aligned: _Alignment, sides: _Sides) -> Difference:
    numbers = [*sides.a.decodes, *(number for number, _ in sides.a.chunks)]
    texts = ("sampled its tokens", "sampled other tokens for the same batch")
    cause = "the scheduler's decisions are equal, the sampled tokens differ"
    return _found(aligned, "tokens", sides, texts, cause, numbers)


def _figures(a: Run, b: Run) -> list[Figure]:
    rows: list[tuple[str, str, Callable[[Run], float | None]]] = [
        ("steps", "", lambda run: len(run.steps)),
        ("duration", "s", lambda run: run.duration),
        (
            "requests finished",
            "",
            lambda run: sum(request.end is not None for request in run.requests),
        ),
        (
            "output tokens",
            "",
            lambda run: sum(request.num_output_tokens for request in run.requests),
        ),
        ("output tokens per second", "1/s", _throughput),
        ("TTFT, mean", "s", lambda run: _mean([request.ttft for request in run.requests])),
        ("TTFT, largest", "s", lambda run: _largest([request.ttft for request in run.requests])),
        ("end to end, mean", "s", lambda run: _mean([request.e2e for request in run.requests])),
        (
            "time in queue, mean",
            "s",
            lambda run: _mean([request.metrics.time_in_queue for request in run.requests]),
        ),
        ("preemptions", "", lambda run: sum(request.num_preemptions for request in run.requests)),
        (
            "tokens lost to preemption",
            "",
            lambda run: sum(request.num_lost_tokens for request in run.requests),
        ),
        (
            "tokens found in the prefix cache",
            "",
            lambda run: sum(request.num_cached_tokens or 0 for request in run.requests),
        ),
    ]
    figures = [Figure(name, unit, figure(a), figure(b)) for name, unit, figure in rows]
    waits = a.seconds_waiting(), b.seconds_waiting()
    given = waits[0].keys() | waits[1].keys()
    causes = [cause for cause in CAUSES if cause in given]
    causes += sorted(given.difference(causes))
    figures += [
        Figure(
            f"request-seconds waiting: {cause_in_words(cause).label}",
            "s",
            *(seconds.get(cause, 0.0) for seconds in waits),
        )
        for cause in causes
    ]
    return figures


def _throughput(run: Run) -> float | None:
    num_tokens = sum(request.num_output_tokens for request in run.requests)
    return num_tokens / run.duration if run.duration > 0 else None


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean(values: Sequence[float | None]) -> float | None:
    known = _known(values)
    return math.fsum(known) / len(known) if known else None


def _largest(values: Sequence[float | None]) -> float | None:
    return max(_known(values), default=None)
