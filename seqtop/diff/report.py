"""The result of a comparison as text and as JSON."""

from __future__ import annotations

import msgspec

from seqtop.diff.comparison import RunComparison
from seqtop.diff.same_requests import Figure
from seqtop.diff.verdict import change_text, remarks, sentence
from seqtop.text import format as fmt
from seqtop.text.sanitize import indented_json
from seqtop.text.tables import plain, table

_FRACTIONS = ("s", "request-s", "tokens/s")
"""Units of figures that are no whole numbers."""


class RunComparisonDocument(RunComparison, kw_only=True):
    """The comparison of two recordings, as JSON."""

    a: str
    """The path of the first recording."""
    b: str
    differs: bool
    """True if the runs differ in a decision or in a setting."""
    verdict: str
    """A sentence."""


def as_json(comparison: RunComparison, a: str, b: str) -> str:
    """Returns the comparison as indented JSON.

    Args:
        comparison: The comparison.
        a: The path of the first recording.
        b: The path of the second recording.
    """
    fields = msgspec.structs.asdict(comparison)
    verdict = sentence(comparison)
    return indented_json(
        RunComparisonDocument(a=a, b=b, differs=comparison.is_different, verdict=verdict, **fields)
    )


def as_text(comparison: RunComparison, a: str, b: str) -> str:
    """Returns the comparison in sentences and a table of figures; arguments as in `as_json`."""
    lines = [f"{sentence(comparison)}.", "", f"A: {a}", f"B: {b}"]
    lines += [
        f"setting {setting.name}: A {setting.a}, B {setting.b}" for setting in comparison.settings
    ]
    if comparison.num_gaps:
        lines.append(
            f"the recordings have {fmt.plural(comparison.num_gaps, 'gap')},"
            " in which requests may be lost"
        )
    if not comparison.differences:
        lines.append(f"all {comparison.num_equal_steps:,} steps have the same decisions")
    for number, difference in enumerate(comparison.differences):
        if number == 0:
            lines.append(
                f"{comparison.num_equal_steps:,} steps have the same decisions"
                f" (requests aligned by {comparison.aligned_by}); the first difference is in"
                f" {difference.kind}:"
            )
        else:
            lines.append(f"the first difference in {difference.kind}:")
        lines += [
            f"  A, step {_step(difference.step_a)}: {difference.a}",
            f"  B, step {_step(difference.step_b)}: {difference.b}",
            f"  because {difference.cause}",
        ]
        if difference.again_a >= 0:
            lines.append(
                f"  equal again from step {difference.again_a:,} of A and step"
                f" {difference.again_b:,} of B on"
            )
    if comparison.differences:
        lines.append(f"in all, {comparison.num_matching_steps:,} steps have the same decisions")
    same = fmt.plural(comparison.num_requests, "request")
    for title, of_requests in (("in the recording", False), (f"the {same} of both", True)):
        figures = [figure for figure in comparison.figures if figure.of_requests is of_requests]
        rows = [(title, "unit", "A", "B", "B - A", "change"), *map(_row, figures)]
        lines += ["", *table(rows, left=(0, 1))]
    return plain([*lines, *remarks(comparison)])


def _step(number: int) -> str:
    return f"{number:,}" if number >= 0 else "none"


def _row(figure: Figure) -> tuple[str, ...]:
    is_known = figure.a is not None and figure.b is not None
    is_limit = figure.a_is_least or figure.b_is_least
    difference = (figure.b or 0.0) - (figure.a or 0.0) if is_known and not is_limit else None
    numbers = (
        _number(figure.a, figure.unit, is_least=figure.a_is_least),
        _number(figure.b, figure.unit, is_least=figure.b_is_least),
        "" if is_limit else _number(difference, figure.unit),
    )
    return (figure.name, figure.unit, *numbers, change_text(figure))


def _number(value: float | None, unit: str, *, is_least: bool = False) -> str:
    if value is None:
        return "unknown"
    if unit == "share":
        return fmt.percent(value)
    number = f"{value:,.3f}" if unit in _FRACTIONS else f"{value:,.0f}"
    return f"≥ {number}" if is_least else number
