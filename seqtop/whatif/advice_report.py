"""Advice as text and as JSON."""

from __future__ import annotations

import msgspec

from seqtop.state.slo import FIGURES
from seqtop.text import format as fmt
from seqtop.text.sanitize import indented_json, safe_line
from seqtop.whatif.advise import Advice, Trial, sentence, settings_text
from seqtop.whatif.figures import Distribution
from seqtop.whatif.report import basis_lines, knowledge_lines, seconds_text

_MOST_REFUSED = 3
"""Refused settings that are named."""


def as_json(advice: Advice) -> str:
    """Returns the advice as indented JSON."""
    document = {
        "is_proven": advice.basis.is_proven,
        "sentence": sentence(advice),
        "binding_objective": advice.binding,
        **msgspec.structs.asdict(advice),
    }
    return indented_json(document)


def as_text(advice: Advice) -> str:
    """Returns the advice as a sentence, a table of what was tried, and how it is known."""
    lines = basis_lines(advice.basis)
    if not advice.trials:
        lines.append("no advice, since the recording cannot be repeated; --anyway gives some")
        return "\n".join(map(safe_line, lines))
    lines += ["", sentence(advice), "", *table(advice), ""]
    if advice.is_partial:
        lines.append("The search was ended before its end: these are the best so far.")
    lines.append(
        f"{advice.num_tried:,} settings were tried on the first part of the requests,"
        f" {len(advice.trials):,} on all"
    )
    for text, reason in [*advice.refused.items()][:_MOST_REFUSED]:
        lines.append(f"refused: {text}: {reason}")
    if (more := len(advice.refused) - _MOST_REFUSED) > 0:
        lines.append(f"and {more:,} more refused")
    lines += [f"not searched: {name}: {reason}" for name, reason in advice.not_searched.items()]
    lines += ["", *knowledge_lines(advice.basis)]
    return "\n".join(map(safe_line, lines))


def table(advice: Advice) -> list[str]:
    """Returns the lines of a table of the settings that were tried last, the best first."""
    objectives = [*advice.slo]
    header = ["settings", "goodput", *(f"{FIGURES[key]} met" for key in objectives)]
    header += ["TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "preemptions", "load held"]
    rows = [header, *(_row(advice, trial) for trial in advice.trials)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _row(advice: Advice, trial: Trial) -> list[str]:
    run = trial.figures
    name = settings_text(trial.settings) + (" ?" if trial.is_beyond else "")
    return [
        name,
        fmt.percent(trial.goodput),
        *(fmt.percent(run.share_within(key)) for key in advice.slo),
        *_percentiles(run.ttft),
        *_percentiles(run.tpot),
        f"{run.num_preemptions:,}",
        _load(advice, trial),
    ]


def _percentiles(found: Distribution) -> list[str]:
    return [seconds_text(found.p50), seconds_text(found.p99)]


def _load(advice: Advice, trial: Trial) -> str:
    """Returns the highest load that keeps the objectives, with its requests per second."""
    load, recorded = trial.highest_load, advice.requests_per_second
    if load is None or recorded is None:
        return fmt.NOT_AVAILABLE
    if not load:
        return "none tried"
    return f"{load:.2f}x ({load * recorded:.2g}/s)"
