"""The differences between two runs, their explanations, and the figures of both.

The steps of both runs are compared in order, and the requests by their ids, or by their prompts in
order of arrival if the runs have no id in common. At a step that differs, the parts of a step are
compared in the order in which a scheduler decides them: what it was given (arrivals, ends), who was
preempted, who was admitted, who ran, with how many tokens; and then the sampled tokens. The
comparison goes on behind it; of each kind of difference, the first one is described.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from seqtop.diff import same_requests
from seqtop.diff.alignment import MAX_NAMED, Alignment, Ignored
from seqtop.diff.run import RunDecisions, StepDecisions
from seqtop.diff.same_requests import Figure, PairedBy
from seqtop.state.wait_causes import CAUSES
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
    "block moves",
    "lookahead",
    "tokens",
    "length",
]
"""The kind of a difference."""

_NOT_COMPARED = {
    *("incarnation", "engine_id", "start_time", "control", "redacted", "predicted_from"),
    "bytes_per_block",  # what block_size, dtype and the model amount to
    "scheduler_settings",  # each of them is compared by its own name
}
"""Fields of `EngineInfo` that differ between equal runs, or follow from others."""
_MAX_DESCRIBED = 10_000
"""Steps that differ and are described, to find a difference of each kind."""


class Setting(msgspec.Struct):
    """A setting of the engine in which the runs differ."""

    name: str
    a: object
    b: object


class Difference(msgspec.Struct):
    """A step in which two runs differ: the first one of its kind."""

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
    again_a: int = -1
    """The number of the step of the first run from which on the decisions are equal again; -1 if
    they never are."""
    again_b: int = -1


class RunComparison(msgspec.Struct):
    """The result of comparing two runs."""

    settings: list[Setting]
    differences: list[Difference]
    """The first difference of each kind, in the order of the steps; empty if all are equal."""
    figures: list[Figure]
    num_equal_steps: int
    """Steps before the first difference."""
    num_matching_steps: int
    """Steps whose decisions are equal, also behind differences."""
    aligned_by: PairedBy
    num_requests: int = 0
    """Requests that both runs have, with the same prompts."""
    num_only_a: int = 0
    """Requests of the first run alone."""
    num_only_b: int = 0
    num_other_prompts: int = 0
    """Requests with equal ids and other prompts, which are not the same."""
    num_gaps: int = 0
    """Gaps in both recordings together."""

    @property
    def first(self) -> Difference | None:
        """The first decision that differs; `None` if all are equal."""
        return self.differences[0] if self.differences else None

    @property
    def is_different(self) -> bool:
        """True if the runs differ in a decision or in a setting."""
        return bool(self.differences or self.settings)

    def figure(self, name: str) -> Figure | None:
        """Returns the figure of this name of the requests that both runs have."""
        named = (own for own in self.figures if own.of_requests and own.name == name)
        return next(named, None)


def compare(a: RunDecisions, b: RunDecisions, ignored: Iterable[Ignored] = ()) -> RunComparison:
    """Compares two runs, apart from what is to be ignored."""
    aligned = Alignment(a, b, ignored)
    settings = _settings(a.info, b.info)
    num_equal = aligned.num_equal(0, 0)
    differences, num_matching = _differences(aligned, num_equal)
    if settings and differences:
        changed = ", ".join(f"{setting.name} {setting.a} → {setting.b}" for setting in settings)
        differences[0].cause = f"the settings differ: {changed}; {differences[0].cause}"
    pairs = aligned.pairs
    same = pairs._replace(of_a=pairs.same_prompts(a.requests, b.requests))
    return RunComparison(
        settings,
        differences,
        [*_figures(a, b), *same_requests.figures(a, b, same)],
        num_equal,
        num_equal + num_matching,
        pairs.by,
        num_requests=len(same.of_a),
        num_only_a=len(a.requests) - len(pairs.of_a),
        num_only_b=len(b.requests) - len(pairs.of_a),
        num_other_prompts=len(pairs.of_a) - len(same.of_a),
        num_gaps=a.num_gaps + b.num_gaps,
    )


def _differences(aligned: Alignment, first: int) -> tuple[list[Difference], int]:
    """Returns the first difference of each kind, and the number of equal steps from `first` on."""
    a, b = aligned.a.steps, aligned.b.steps
    of_kind: dict[DifferenceKind, Difference] = {}
    at_a = at_b = first
    num_matching, num_left = 0, _MAX_DESCRIBED
    while at_a < len(a) or at_b < len(b):
        again = aligned.next_equal(at_a, at_b)
        end_a, end_b = again or (len(a), len(b))
        # Steps that only one run has are compared with the next one of the other.
        count = max(min(end_a - at_a, end_b - at_b, num_left), 1)
        num_left -= count
        for number in range(count):
            difference = _difference(aligned, at_a + number, at_b + number)
            if difference is not None and difference.kind not in of_kind:
                of_kind[difference.kind] = difference
                if again is not None:
                    difference.again_a, difference.again_b = a[end_a].step, b[end_b].step
        if again is None:
            break
        count = aligned.num_equal(end_a, end_b)
        num_matching, at_a, at_b = num_matching + count, end_a + count, end_b + count
    return [*of_kind.values()], num_matching


class _Sides(NamedTuple):
    """One step of both runs, with the numbers of the first."""

    a: StepDecisions
    b: StepDecisions


def _settings(a: EngineInfo | None, b: EngineInfo | None) -> list[Setting]:
    if a is None or b is None:
        return []
    names = [*EngineInfo.__struct_fields__, *a.scheduler_settings, *b.scheduler_settings]
    if "policy" in a.scheduler_settings and "policy" in b.scheduler_settings:
        names.remove("queue_order")  # it follows from vLLM's policy
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


def _difference(aligned: Alignment, at_a: int, at_b: int) -> Difference | None:
    a, b = aligned.a.steps, aligned.b.steps
    if at_a >= len(a) or at_b >= len(b):
        return _length(aligned, at_a, at_b)
    if aligned.is_equal(at_a, at_b):
        return None
    sides = _Sides(a[at_a], aligned.of_b(b[at_b]))
    for find in (_arrivals, _ends, _preemptions, _admissions, _sizes, _moves, _lookahead):
        if difference := find(aligned, sides):
            return difference
    return _tokens(aligned, sides)


def _length(aligned: Alignment, at_a: int, at_b: int) -> Difference:
    a, b = aligned.a.steps, aligned.b.steps
    num_a, num_b = (fmt.plural(len(steps), "step") for steps in (a, b))
    return Difference(
        "length",
        f"the run has {num_a}",
        f"the run has {num_b}",
        a[at_a].step if at_a < len(a) else -1,
        b[at_b].step if at_b < len(b) else -1,
        "one recording goes on after the end of the other",
    )


def _found(
    aligned: Alignment,
    kind: DifferenceKind,
    sides: _Sides,
    texts: tuple[str, str],
    cause: str,
    numbers: Sequence[int],
) -> Difference:
    names = [aligned.name(number) for number in dict.fromkeys(numbers)]
    return Difference(kind, *texts, sides.a.step, sides.b.step, cause, names[: 2 * MAX_NAMED])


def _arrivals(aligned: Alignment, sides: _Sides) -> Difference | None:
    if "arrivals" in aligned.ignored:
        return None
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


def _ends(aligned: Alignment, sides: _Sides) -> Difference | None:
    a, b = sides.a.ended, sides.b.ended
    if {*a} == {*b}:
        return None

    def text(ended: tuple[tuple[int, str], ...]) -> str:
        return "ended before this step: " + (
            ", ".join(f"{aligned.name(number)} ({status})" for number, status in ended[:MAX_NAMED])
            or "none"
        )

    cause = "a request ended, or was aborted, at another time or for another reason"
    numbers = [number for number, _ in {*a} ^ {*b}]
    return _found(aligned, "ends", sides, (text(a), text(b)), cause, sorted(numbers))


def _preemptions(aligned: Alignment, sides: _Sides) -> Difference | None:
    a, b = sides.a.preempted, sides.b.preempted
    if a == b:
        return None

    def text(preempted: tuple[tuple[int, int | None, str], ...]) -> str:
        return "preempted " + (
            ", ".join(
                f"{aligned.name(number)} by {mode}"
                + ("" if for_ is None else f" for {aligned.name(for_)}")
                for number, for_, mode in preempted[:MAX_NAMED]
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


def _admissions(aligned: Alignment, sides: _Sides) -> Difference | None:
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


def _waits(aligned: Alignment, step: StepDecisions) -> str:
    return "".join(
        f"; {aligned.name(number)} was left waiting: {CAUSES[cause].limited(None)}"
        for number, cause, _ in islice(step.waits, MAX_NAMED)
    )


def _refusal(aligned: Alignment, number: int, step: StepDecisions) -> str:
    name, stats = aligned.name(number), step.stats
    if not aligned.is_in_both(number):
        return f"the other run has no request {name}"
    for waiting, cause, num_missing in step.waits:
        if waiting == number:
            missing = CAUSES[cause].missing(num_missing)
            lacks = f" ({missing})" if missing else ""
            return f"the other run left {name} waiting: {CAUSES[cause].limited(None)}{lacks}"
    if step.waits:
        return f"in the other run {name} was behind {aligned.name(step.waits[0][0])}"
    available = stats.num_free_blocks + (stats.num_cached_blocks or 0)
    return (
        f"the other run did not admit {name} and gave no reason, with"
        f" {fmt.plural(available, 'block')} available and"
        f" {fmt.plural(stats.num_running, 'running sequence')}"
    )


def _sizes(aligned: Alignment, sides: _Sides) -> Difference | None:
    """Compares who ran, in which order, and with how many tokens."""
    sizes = [dict(side.chunks) | dict.fromkeys(side.decodes, 1) for side in sides]
    only = [sorted(sizes[0].keys() - sizes[1].keys()), sorted(sizes[1].keys() - sizes[0].keys())]
    if any(only):
        texts = [
            f"ran {fmt.plural(len(size), 'request')} with {fmt.plural(sum(size.values()), 'token')}"
            + (f", {aligned.names(numbers)} only here" if numbers else "")
            for size, numbers in zip(sizes, only, strict=True)
        ]
        cause = "the requests in the batch differ"
        return _found(aligned, "batch", sides, (texts[0], texts[1]), cause, [*only[0], *only[1]])
    differing = [number for number in sizes[0] if sizes[0][number] != sizes[1][number]]
    if differing:
        return _budget(aligned, sides, sizes, differing)
    if (sides.a.chunks, sides.a.decodes) != (sides.b.chunks, sides.b.decodes):
        same = ("ran the same requests", "ran them in another order")
        return _found(aligned, "batch", sides, same, "the order of the batch differs", [*sizes[0]])
    return None


def _budget(
    aligned: Alignment, sides: _Sides, sizes: Sequence[dict[int, int]], differing: list[int]
) -> Difference:
    first = differing[0]
    texts = [
        f"computed {fmt.plural(size[first], 'token')} of {aligned.name(first)},"
        f" {sum(size.values()):,} in total"
        for size in sizes
    ]
    most = [
        max((_num_tokens(step) for step in run.steps), default=0) for run in (aligned.a, aligned.b)
    ]
    cause = (
        f"the token budget of a step differs: no step computed more than {most[0]:,} and"
        f" {most[1]:,} tokens"
        if most[0] != most[1]
        else "the tokens of the step were divided in another way"
    )
    return _found(aligned, "token budget", sides, (texts[0], texts[1]), cause, differing)


def _moves(aligned: Alignment, sides: _Sides) -> Difference | None:
    """Compares the numbers of blocks that were swapped and copied."""
    if sides.a.moves == sides.b.moves:
        return None
    texts = [
        "swapped {} in and {} out, copied {}".format(
            *(fmt.plural(number, "block") for number in side.moves)
        )
        for side in sides
    ]
    cause = "the batches are equal, the blocks that are moved before differ"
    return _found(aligned, "block moves", sides, (texts[0], texts[1]), cause, _batch(sides))


def _lookahead(aligned: Alignment, sides: _Sides) -> Difference | None:
    """Compares the slots for further tokens, and the iterations of the worker."""
    if sides.a.lookahead == sides.b.lookahead:
        return None
    texts = [
        f"had {fmt.plural(slots, 'lookahead slot')}, for {fmt.plural(count, 'iteration')}"
        for slots, count in (side.lookahead for side in sides)
    ]
    cause = "the batches are equal, the slots for further tokens differ"
    return _found(aligned, "lookahead", sides, (texts[0], texts[1]), cause, _batch(sides))


def _batch(sides: _Sides) -> list[int]:
    """Returns the requests in the batch of the first run."""
    return [*sides.a.decodes, *(number for number, _ in sides.a.chunks)]


def _num_tokens(step: StepDecisions) -> int:
    """Returns the tokens that a step computed."""
    return len(step.decodes) + sum(num_tokens for _, num_tokens in step.chunks)


def _tokens(aligned: Alignment, sides: _Sides) -> Difference:
    texts = ("sampled its tokens", "sampled other tokens for the same batch")
    cause = "the scheduler's decisions are equal, the sampled tokens differ"
    return _found(aligned, "tokens", sides, texts, cause, _batch(sides))


def _figures(a: RunDecisions, b: RunDecisions) -> list[Figure]:
    recorded: list[tuple[str, str, int, Callable[[RunDecisions], float | None]]] = [
        ("steps", "steps", 0, lambda run: len(run.steps)),
        ("duration", "s", 0, lambda run: run.duration),
        ("requests", "requests", 0, lambda run: len(run.requests)),
        ("requests served", "requests", 1, lambda run: run.num_served),
        ("output", "tokens", 0, lambda run: run.num_output_tokens),
        ("throughput", "tokens/s", 1, _throughput),
        ("preemptions", "times", -1, lambda run: run.num_preemptions),
        ("lost to preemption", "tokens", -1, lambda run: run.num_lost_tokens),
        ("found in the prefix cache", "tokens", 1, lambda run: run.num_cached_tokens),
        ("prefix-cache hit share", "share", 1, _hit_share),
    ]
    return [
        Figure(name=name, unit=unit, a=figure(a), b=figure(b), better=better)
        for name, unit, better, figure in recorded
    ]


def _hit_share(run: RunDecisions) -> float | None:
    return run.num_cached_tokens / run.num_admitted_tokens if run.num_admitted_tokens else None


def _throughput(run: RunDecisions) -> float | None:
    return run.num_output_tokens / run.duration if run.duration > 0 else None
