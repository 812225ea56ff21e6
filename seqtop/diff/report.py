"""The result of a comparison as text and as JSON."""

from __future__ import annotations

import msgspec

from seqtop.diff.comparison import Comparison, Figure
from seqtop.text.sanitize import safe_json, safe_line


def as_json(comparison: Comparison, a: str, b: str) -> str:
    """Returns the comparison as indented JSON.

    Args:
        comparison: The comparison.
        a: The path of the first recording.
        b: The path of the second recording.
    """
    document = {
        "a": a,
        "b": b,
        "differs": comparison.differs,
        **msgspec.structs.asdict(comparison),
    }
    return safe_json(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def as_text(comparison: Comparison, a: str, b: str) -> str:
    """Returns the comparison in sentences and a table of figures; arguments as in `as_json`."""
    lines = [f"A: {a}", f"B: {b}"]
    lines += [
        f"setting {setting.name}: A {setting.a}, B {setting.b}" for setting in comparison.settings
    ]
    first = comparison.first
    if comparison.num_gaps:
        lines.append(
            f"the recordings have {comparison.num_gaps} gaps, in which requests may be lost"
        )
    if first is None:
        lines.append(f"all {comparison.num_equal_steps:,} steps have the same decisions")
    else:
        lines.append(
            f"{comparison.num_equal_steps:,} steps have the same decisions"
            f" (requests aligned by {comparison.aligned_by}); the first difference is in"
            f" {first.kind}:"
        )
        lines += [
            f"  A, step {_step(first.step_a)}: {first.a}",
            f"  B, step {_step(first.step_b)}: {first.b}",
            f"  because {first.cause}",
        ]
    width = max(len(figure.name) for figure in comparison.figures)
    lines += ["", f"{'':{width}}  {'A':>12}  {'B':>12}  {'B - A':>12}"]
    lines += [_row(figure, width) for figure in comparison.figures]
    return "\n".join(map(safe_line, lines))


def _step(number: int) -> str:
    return f"{number:,}" if number >= 0 else "none"


def _row(figure: Figure, width: int) -> str:
    change = None if figure.a is None or figure.b is None else figure.b - figure.a
    cells = (_number(figure.a, figure), _number(figure.b, figure), _number(change, figure))
    return f"{figure.name:{width}}  " + "  ".join(f"{cell:>12}" for cell in cells)


def _number(value: float | None, figure: Figure) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.3f}" if figure.unit else f"{value:,.0f}"
