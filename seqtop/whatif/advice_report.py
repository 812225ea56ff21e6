"""Advice as text and as JSON."""

from __future__ import annotations

import msgspec

from seqtop.state.slo import FIGURES
from seqtop.text import format as fmt
from seqtop.text.sanitize import indented_json
from seqtop.text.tables import plain, table
from seqtop.whatif.advise import Advice, Trial, sentence, settings_text
from seqtop.whatif.figures import Distribution
from seqtop.whatif.report import basis_lines, knowledge_lines, seconds_text
from seqtop.whatif.sweep import SHARE_WITHIN_SLO

_MOST_REFUSED = 3
"""Refused settings that are named."""


class AdviceDocument(Advice, kw_only=True):
    """Advice, as JSON."""

    is_proven: bool
    """True if nothing says that the scheduler is not the one of the recording."""
    sentence: str
    binding_objective: str
    """The objective that the fewest requests meet with the best settings; empty without any."""


def as_json(advice: Advice) -> str:
    """Returns the advice as indented JSON."""
    return indented_json(
        AdviceDocument(
            is_proven=advice.basis.is_proven,
            sentence=sentence(advice),
            binding_objective=advice.binding,
            **msgspec.structs.asdict(advice),
        )
    )


def as_text(advice: Advice) -> str:
    """Returns the advice as a sentence, a table of what was tried, and how it is known."""
    lines = basis_lines(advice.basis)
    if not advice.trials:
        lines.append("no advice, since the recording cannot be repeated; --anyway gives some")
        return plain(lines)
    lines += ["", sentence(advice), "", *trial_lines(advice), ""]
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
    return plain([*lines, "", *knowledge_lines(advice.basis)])


def load_sentence(advice: Advice) -> str:
    """Returns the loads that the recorded and the best settings hold; empty without a search."""
    trials = [advice.recorded, advice.best if advice.best is not advice.recorded else None]
    texts = [
        f"{_load(advice, own)} {settings_text(own.settings)}"
        if not own.settings
        else f"{_load(advice, own)} with {settings_text(own.settings)}"
        for own in trials
        if own is not None and own.highest_load is not None
    ]
    return f"load that holds for {SHARE_WITHIN_SLO:.0%}: {'; '.join(texts)}" if texts else ""


def trial_lines(advice: Advice) -> list[str]:
    """Returns the lines of a table of the settings that were tried last, the best first."""
    objectives = [*advice.slo]
    header = ["goodput", *(f"{FIGURES[key]} met" for key in objectives)]
    header += [
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "TPOT p99",
        "preemptions",
        "load held",
        "settings",
    ]
    return table([header, *(_row(advice, trial) for trial in advice.trials)], left=(-1,))


def _row(advice: Advice, trial: Trial) -> list[str]:
    run = trial.figures
    name = settings_text(trial.settings) + (" ?" if trial.is_beyond else "")
    if trial.num_refused:
        name += f" ({fmt.plural(trial.num_refused, 'request')} refused)"
    return [
        fmt.percent(trial.goodput),
        *(fmt.percent(run.share_within(key)) for key in advice.slo),
        *_percentiles(run.ttft),
        *_percentiles(run.tpot),
        f"{run.num_preemptions:,}",
        _load(advice, trial),
        name,
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
