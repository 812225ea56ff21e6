"""The verdict on two runs in one sentence: who serves more requests, how fast, and why."""

from __future__ import annotations

from collections.abc import Sequence

from seqtop.diff.comparison import Difference, RunComparison, Setting
from seqtop.diff.same_requests import Figure
from seqtop.text import format as fmt

_NO_DECISIONS = ("arrivals", "ends", "tokens", "length")
"""Kinds of differences that follow from other times or tokens, and say little about the reason."""
_NOTABLE = 0.05
"""The relative change from which on a latency is named."""
_NAMED = ("TTFT", "TPOT", "end to end")
_MAX_NAMED = 2
_MAX_SETTINGS = 3
_WAITING = "waiting: "
_LEAST_WAIT = 1.0
"""The seconds of waiting that the runs differ by from which on they are named."""


def sentence(comparison: RunComparison) -> str:
    """Returns the verdict: the requests served, the latencies that change, and the reason."""
    parts = [_served(comparison), *_latencies(comparison), f"because {_reason(comparison)}"]
    if not comparison.is_different:
        parts[-1] = "all decisions and settings are the same"
    return "; ".join(parts)


def changed(settings: Sequence[Setting]) -> str:
    """Returns the settings that differ, as `max_num_seqs 4 → 16`."""
    named = [f"{own.name} {own.a} → {own.b}" for own in settings[:_MAX_SETTINGS]]
    more = len(settings) - _MAX_SETTINGS
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def value_text(value: float | None, unit: str, *, is_least: bool) -> str:
    """Returns a figure as short text; one that may be higher has the sign ≥ before it."""
    if value is None:
        return fmt.UNKNOWN
    if unit == "share":
        text = fmt.percent(value)
    else:
        text = (fmt.seconds if unit in ("s", "request-s") else fmt.count)(value)
    return f"{'≥ ' if is_least else ''}{text}"


def change_text(figure: Figure) -> str:
    """Returns the relative change of a figure in percent; empty if it is not known.

    Where one run is known only to take at least some time, so is the change.
    """
    change = figure.change
    if change is None:
        return ""
    if not change:
        return "0%"
    sign = "≤ " if figure.a_is_least else "≥ " if figure.b_is_least else ""
    return f"{sign}{change:+.1%}" if abs(change) < _NOTABLE else f"{sign}{change:+.0%}"


def remarks(comparison: RunComparison) -> list[str]:
    """Returns phrases on figures that are limits, and on requests that are not compared."""
    phrases = []
    if any(figure.a_is_least or figure.b_is_least for figure in comparison.figures):
        phrases.append("≥: at least, since some of the requests had not ended")
    counts = (
        (comparison.num_only_a, "only in A"),
        (comparison.num_only_b, "only in B"),
        (comparison.num_other_prompts, "in both with other prompts"),
    )
    return phrases + [f"{fmt.plural(count, 'request')} {where}" for count, where in counts if count]


def _served(comparison: RunComparison) -> str:
    count, served = comparison.num_requests, comparison.figure("served")
    if not count or served is None:
        return "the runs have no request in common"
    a, b = int(served.a or 0), int(served.b or 0)
    of = f"of the {fmt.plural(count, 'request')} that both have"
    if a == b:
        return f"both serve {'all' if a == count else fmt.count(a)} {of}"
    (more, most), (less, least) = sorted((("A", a), ("B", b)), key=lambda own: -own[1])
    return f"{more} serves {fmt.count(most)} {of}, {less} {fmt.count(least)}"


def _latencies(comparison: RunComparison) -> list[str]:
    known = []
    for name in _NAMED:
        figures = [comparison.figure(f"{name}, p{percent}") for percent in (99, 50)]
        known += [own for own in figures if own is not None and own.change is not None][:1]
    notable = [own for own in known if abs(own.change or 0.0) >= _NOTABLE][:_MAX_NAMED]
    texts = []
    for own in notable:
        a = value_text(own.a, own.unit, is_least=own.a_is_least)
        b = value_text(own.b, own.unit, is_least=own.b_is_least)
        texts.append(f"{own.name.replace(',', '')} {change_text(own)} ({a} → {b})")
    if known and not notable:
        texts.append(f"latencies differ by less than {_NOTABLE:.0%}")
    return texts


def _reason(comparison: RunComparison) -> str:
    parts = []
    if comparison.settings:
        parts.append(changed(comparison.settings))
    if (first := telling(comparison)) is not None:
        step = first.step_a if first.step_a >= 0 else first.step_b
        own = first.cause.rpartition("; ")[2] if comparison.settings else first.cause
        parts.append(f"first in step {step:,}, {first.kind}: {own}")
    waits = [own for own in comparison.figures if own.name.startswith(_WAITING)]
    largest = max(waits, key=_distance, default=None)
    if largest is not None and _distance(largest) >= _LEAST_WAIT:
        a, b = (value_text(own, "s", is_least=False) for own in (largest.a, largest.b))
        cause = largest.name.removeprefix(_WAITING)
        parts.append(f"all requests together waited for {cause} {a} → {b}")
    return "; ".join(parts)


def _distance(figure: Figure) -> float:
    """Returns the amount by which the runs differ in a figure that both have."""
    return abs((figure.b or 0.0) - (figure.a or 0.0))


def telling(comparison: RunComparison) -> Difference | None:
    """Returns the first difference that is a decision, or else the first one."""
    decisions = (own for own in comparison.differences if own.kind not in _NO_DECISIONS)
    return next(decisions, comparison.first)
