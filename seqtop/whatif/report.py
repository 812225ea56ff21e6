"""Predictions as text and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeAlias, assert_never

import msgspec

from seqtop.history.step_time import StepTime
from seqtop.state.slo import Slo
from seqtop.text import format as fmt
from seqtop.text.sanitize import indented_json
from seqtop.text.tables import plain, table
from seqtop.whatif.changed_requests import describe
from seqtop.whatif.figures import PERCENTILES, RunFigures
from seqtop.whatif.predict import Basis, Prediction
from seqtop.whatif.proof import difference_lines
from seqtop.whatif.sweep import Capacity, Point, Sweep
from seqtop.wire.messages import Setting

Answer: TypeAlias = Prediction | Sweep | Capacity

_BAR_WIDTH = 24
_QUEUE = "steps in the queue"
_DECISIONS = (
    "steps",
    "preemptions",
    "tokens computed twice",
    "prefix-cache hits, tokens",
    *(f"{_QUEUE} p{percent}" for percent in PERCENTILES),
)
"""The figures of decisions, which are exact whatever the times of steps are."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_Format: TypeAlias = Callable[[float | None], str]


class PredictionDocument(Prediction, kw_only=True):
    """A prediction, as JSON."""

    is_proven: bool
    """True if nothing says that the scheduler is not the one of the source."""


class SweepDocument(Sweep, kw_only=True):
    """The predictions of several settings, as JSON."""

    is_proven: bool
    """True if nothing says that the scheduler is not the one of the source."""


class CapacityDocument(Capacity, kw_only=True):
    """The highest load that keeps the objectives, as JSON."""

    is_proven: bool
    """True if nothing says that the scheduler is not the one of the source."""


def as_json(answer: Answer) -> str:
    """Returns an answer as indented JSON."""
    fields = {"is_proven": answer.basis.is_proven, **msgspec.structs.asdict(answer)}
    match answer:
        case Prediction():
            return indented_json(PredictionDocument(**fields))
        case Sweep():
            return indented_json(SweepDocument(**fields))
        case Capacity():
            return indented_json(CapacityDocument(**fields))
    assert_never(answer)


def as_text(answer: Answer) -> str:
    """Returns an answer as sentences, a table, and how it is known."""
    lines = basis_lines(answer.basis)
    match answer:
        case Prediction(predicted=None) if not answer.question.has_changes:
            pass
        case Prediction(predicted=None) | Sweep(points=[]) | Capacity(points=[]):
            lines.append(
                "no prediction, since the recording cannot be repeated; --anyway makes one"
            )
        case Prediction():
            lines += ["", "PREDICTION, of no real run:", *_changes(answer)]
            lines += [*_cut_off(answer), *_distance(answer), "", *_table(answer)]
            if answer.changed:
                lines += ["", "requests that change most:"]
                lines += [f"  {describe(changed)}" for changed in answer.changed]
            lines += ["", *knowledge_lines(answer.basis), *_caveats(answer)]
        case Sweep():
            lines += ["", "PREDICTION, of no real runs:", *_changes(answer)]
            lines += [*_cut_off(answer), "", *_chart(answer)]
            lines += ["", *knowledge_lines(answer.basis)]
        case Capacity():
            lines += ["", "PREDICTION, of no real runs:", *_changes(answer)]
            lines += [*_cut_off(answer), "", *_loads(answer)]
            lines += ["", *knowledge_lines(answer.basis)]
    return plain(lines)


def basis_lines(basis: Basis) -> list[str]:
    """Returns the proof of a recording, or the summary of a trace."""
    proof = basis.proof
    if proof is None:
        return _trace(basis)
    steps = fmt.plural(proof.num_steps, "step")
    if not proof.is_complete:
        return [f"unchanged settings: {steps}, which had not been repeated when the search ended"]
    lines = [f"unchanged settings: {proof.num_equal_steps:,} of {steps} equal"]
    if proof.repeated_by:
        lines[0] += f", repeated by {proof.repeated_by}"
    return lines + difference_lines(proof)


def _trace(basis: Basis) -> list[str]:
    trace = basis.trace
    assert trace is not None
    lines = [f"{trace.format} trace: {fmt.plural(basis.num_requests, 'request')}"]
    lines += [f"  left out: {count:,}, {reason}" for reason, count in trace.left_out.items()]
    settings = (f"{name}={setting_text(value)}" for name, value in basis.settings.items())
    return [*lines, f"  engine: {', '.join(settings)}"]


def _changes(answer: Answer) -> list[str]:
    question = answer.question
    lines: list[str] = []
    if isinstance(answer, Prediction):
        lines += [
            f"{name}: {answer.recorded_settings[name]} → {value}"
            for name, value in answer.settings.items()
        ]
    elif question.changes:
        lines.append(f"with {', '.join(question.changes)}")
    if question.scale_arrivals != 1:
        lines.append(f"arrivals: {question.scale_arrivals:g} times as fast")
    if question.without:
        lines.append(f"without {', '.join(question.without)}")
    return lines


def _cut_off(answer: Answer) -> list[str]:
    """Returns lines on requests whose tokens in the recording are not all that they would have."""
    unfinished, lines = set(answer.basis.unfinished), list[str]()
    if unfinished:
        lines.append(
            f"{fmt.plural(len(unfinished), 'request')} had not ended at the end of the recording:"
            " each runs on until its recorded tokens are used up, and is cut off there"
        )
    if isinstance(answer, Prediction) and answer.predicted is not None:
        num_aborted = sum(name not in unfinished for name in answer.predicted.cut)
        if num_aborted:
            lines.append(
                f"{fmt.plural(num_aborted, 'aborted request')} cut off before the time of the"
                " abort, where the recorded tokens are used up"
            )
    return lines


def figure_rows(
    basis: Basis,
) -> list[tuple[str, Callable[[RunFigures], float | None], _Format]]:
    """Returns name, value and format of each row of the table: of what is predicted."""
    rows: list[tuple[str, Callable[[RunFigures], float | None], _Format]] = [
        ("steps", lambda run: run.num_steps, _count),
        ("makespan", lambda run: run.makespan, seconds_text),
        ("output tokens per second", lambda run: run.throughput, _rate),
        ("preemptions", lambda run: run.num_preemptions, _count),
        ("tokens computed twice", lambda run: run.num_lost_tokens, _count),
        ("prefix-cache hits, tokens", lambda run: run.num_hit_tokens, _count),
        *(
            (f"{_QUEUE} p{percent}", attrgetter(f"queue_steps.p{percent}"), _count)
            for percent in PERCENTILES
        ),
        *(
            (f"{figure.upper()} p{percent}", attrgetter(f"{figure}.p{percent}"), seconds_text)
            for figure in ("ttft", "itl", "e2e")
            for percent in PERCENTILES
        ),
    ]
    return [row for row in rows if not basis.times_unknown or row[0] in _DECISIONS]


def _count(value: float | None) -> str:
    return fmt.NOT_AVAILABLE if value is None else f"{value:,.0f}"


def _rate(value: float | None) -> str:
    return fmt.NOT_AVAILABLE if value is None else f"{value:,.1f}"


def seconds_text(value: float | None) -> str:
    """Returns seconds as text, or the sign for an unknown figure."""
    return fmt.NOT_AVAILABLE if value is None else fmt.seconds(value)


def _table(answer: Prediction) -> list[str]:
    assert answer.predicted is not None
    figures = figure_rows(answer.basis)
    is_guess = answer.predicted.is_beyond
    if answer.unchanged is None:
        run = answer.predicted.figures
        alone = [(name, form(own(run)), _doubt(name, is_guess)) for name, own, form in figures]
        return [*table(alone, left=(0, 2)), *_guess(answer)]
    runs = answer.basis.recorded, answer.unchanged.figures, answer.predicted.figures
    rows: list[tuple[str, ...]] = [("", "recorded", "model", "error", "predicted", "change")]
    for name, figure, form in figures:
        recorded, unchanged, predicted = (figure(run) for run in runs)
        cells = (
            *(form(recorded), form(unchanged), _ratio(unchanged, recorded)),
            *(form(predicted), _ratio(predicted, unchanged)),
        )
        rows.append((name, *cells, _doubt(name, is_guess)))
    return [*table(rows, left=(0, -1)), *_guess(answer)]


def _ratio(value: float | None, base: float | None) -> str:
    """Returns the change of a figure in percent; empty if it is not known."""
    return f"{value / base - 1:+.1%}" if base and value is not None else ""


def _doubt(name: str, is_guess: bool) -> str:
    """Returns the mark of a figure whose times are a guess."""
    return "?" if is_guess and name not in _DECISIONS else ""


def _guess(answer: Prediction) -> list[str]:
    """Returns lines on how far the times can be trusted."""
    result, basis = answer.predicted, answer.basis
    assert result is not None
    if basis.times_unknown:
        return [
            "",
            f"No times are predicted: {basis.times_unknown}.",
            "Requests arrive before the same steps as in the recording.",
        ]
    if not result.is_beyond or basis.step_time is None:
        return []
    largest = basis.step_time.largest
    share = fmt.percent(result.share_extrapolated)
    sentence = (
        f"?: a guess. {share} of the predicted time is in steps larger than any recorded one"
        f" ({fmt.plural(largest.num_prefill_tokens, 'prefill token')},"
        f" {fmt.plural(largest.num_decode_tokens, 'decode token')}), whose times are not known;"
        " --calibrate takes those of another recording, --step-time the times"
    )
    return ["", sentence]


def _distance(answer: Prediction) -> list[str]:
    """Returns a line on the distance of the model from the recorded run, if that is large."""
    own = answer.distance
    if own is None:
        return []
    model, recorded = fmt.seconds(own.by_time), fmt.seconds(own.recorded)
    sentence = (
        f"The model's TTFT p{own.percent} is {model} where {recorded} was recorded"
        f" ({own.by_time / own.recorded - 1:+.0%}), so changes are those from the model:"
        f" {_signed(own.by_step - own.recorded)} of it come from the times of steps,"
        f" {_signed(own.by_time - own.by_step)} from arrivals that meet other steps than in the"
        " recording"
    )
    return ["", sentence]


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{fmt.seconds(abs(seconds))}"


def _chart(answer: Sweep) -> list[str]:
    """Returns a line for each combination of a sweep, with a bar for its E2E p90."""
    rows = [[*answer.recorded, "tokens/s", "preemptions", "TTFT p90", "ITL p90", "E2E p90"]]
    if answer.slo:
        rows[0].append("within SLO")
    width = len(rows[0])
    most = max((point.figures.e2e.p90 or 0.0 for point in answer.points), default=0.0)
    for point in answer.points:
        values = [*map(setting_text, point.settings.values())]
        if point.error is not None:
            blank = [""] * (width - len(values))
            rows.append([*values, *blank, f"refused: {point.error}"])
            continue
        run = point.figures
        cells = [
            *values,
            _rate(run.throughput),
            _count(run.num_preemptions),
            *(seconds_text(own.p90) for own in (run.ttft, run.itl, run.e2e)),
        ]
        if answer.slo:
            cells.append(fmt.percent(run.share_within_slo))
        bar = _bar((run.e2e.p90 or 0.0) / most if most > 0 else 0.0)
        rows.append([*cells, f"{bar}{_doubts(point)}"])
    first = (f"{name}: {value} recorded" for name, value in answer.recorded.items())
    return [*first, "", *table(rows, left=(width,)), *_marks(answer.points)]


def _loads(answer: Capacity) -> list[str]:
    """Returns the highest load that keeps the objectives, and a line for each load tried."""
    recorded = answer.requests_per_second
    wanted = f"{Slo(**answer.slo)} for {answer.share:.0%} of the requests"

    def rate(scale: float) -> str:
        return _rate(None if recorded is None else scale * recorded)

    def load(scale: float) -> str:
        return f"{scale:.2f} times the recorded load ({rate(scale)} requests/s)"

    if answer.highest is None:
        lowest = answer.lowest_missed or 0.0
        sentence = f"{wanted}: not even at {load(lowest)}"
    elif answer.lowest_missed is None:
        sentence = f"{wanted}: still at {load(answer.highest)}, the highest load tried"
    else:
        sentence = (
            f"{wanted}: up to {load(answer.highest)}; at {load(answer.lowest_missed)} no longer"
        )
    rows: list[tuple[str, ...]] = [
        ("load", "requests/s", "tokens/s", "TTFT p90", "ITL p90", "E2E p90", "within SLO")
    ]
    for point in answer.points:
        run, scale = point.figures, point.load
        cells = (
            f"{scale:.2f}",
            rate(scale),
            _rate(run.throughput),
            *(seconds_text(own.p90) for own in (run.ttft, run.itl, run.e2e)),
            fmt.percent(run.share_within_slo),
        )
        rows.append((*cells, f"{_bar(run.share_within_slo or 0.0)}{_doubts(point)}"))
    lines = [sentence, "", *table(rows, left=(7,)), *_marks(answer.points)]
    tried = [point for point in answer.points if point.load == answer.highest]
    if any(point.is_beyond for point in tried):
        lines.append(
            "The highest load needs steps larger than the recorded ones: --calibrate takes those of"
            " a recording with more load"
        )
    return lines


def _bar(share: float) -> str:
    """Returns a bar of blocks; a share of 1 is the whole width."""
    eighths = round(min(max(share, 0.0), 1.0) * _BAR_WIDTH * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()).ljust(_BAR_WIDTH)


def _doubts(point: Point) -> str:
    refused = f"  {fmt.plural(point.num_refused, 'request')} refused" if point.num_refused else ""
    return ("  ?" if point.is_beyond else "") + refused


def _marks(points: Sequence[Point]) -> list[str]:
    if not any(point.is_beyond for point in points):
        return []
    return ["", "?: over a fifth of the time is in steps larger than any recorded one: a guess"]


def setting_text(value: Setting) -> str:
    """Returns the value of a setting as text."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def knowledge_lines(basis: Basis) -> list[str]:
    """Returns what is exact, what is estimated, and what is unknown."""
    if basis.proof is None:
        decisions = "the engine's own scheduler, with the arrivals and lengths of the trace"
    elif basis.proof.is_proven:
        decisions = "the engine's own scheduler, which repeated the recording"
    elif not basis.proof.is_complete:
        decisions = "the engine's own scheduler; whether it repeats the recording is not known"
    else:
        decisions = "a scheduler that does not repeat the recording"
    lines = ["known from:", f"  decisions: {decisions}"]
    if count := basis.num_free_lengths:
        lines.append(
            f"  lengths: as recorded; {count:,} of {basis.num_requests:,} requests end by"
            " themselves and sample without a seed, so a real run may give them other lengths"
        )
    if basis.step_time is not None:
        lines += _times(basis, basis.step_time)
    return lines


def _times(basis: Basis, model: StepTime) -> list[str]:
    speed = "" if basis.trace else "at the recorded speed, "
    lines: list[str] = []
    lines.append(
        f"  times: {speed}{fmt.seconds(model.per_step)} a step +"
        f" {fmt.seconds(model.per_prefill_token)} a prefill token +"
        f" {fmt.seconds(model.per_decode_token)} a decode token, and {fmt.seconds(model.per_gap)}"
        f" until the next step + {fmt.seconds(model.per_arrival)} an arrival"
    )
    if model.given:
        lines.append(f"  given by you, not measured: {', '.join(model.given)}")
    if model.held_out_error is not None and model.total_error is not None:
        lines.append(
            f"  error of steps that were left out of the fit, from start to start:"
            f" {model.held_out_error:.0%} (median), {model.total_error:+.1%} in their sum"
        )
    if model.uncertain:
        lines.append(
            "  uncertain, since the recorded steps are too much alike or too few to tell it apart:"
            f" the time of a {' and of a '.join(_COEFFICIENTS[name] for name in model.uncertain)}"
        )
    for other in basis.calibrations:
        ratio = ""
        if other.ratio is not None:
            ratio = f", which took {other.ratio:.2f} times what this recording alone predicts"
        lines.append(
            f"  fitted also to {fmt.plural(other.num_steps, 'step')} of {other.path}{ratio}"
        )
    lines.append(
        "  the speed of a machine differs from run to run: a change smaller than between two real"
        " runs says nothing"
    )
    return lines


_COEFFICIENTS = {"step": "step", "prefill": "prefill token", "decode": "decode token"}


def caveats(answer: Prediction) -> list[str]:
    """Returns sentences on what limits the trust in a prediction that was made."""
    lines = [*_guess(answer), *_distance(answer), *_cut_off(answer), *_caveats(answer)]
    return [line.strip() for line in lines if line]


def _caveats(answer: Prediction) -> list[str]:
    """Returns what is special in this prediction."""
    result, lines = answer.predicted, []
    assert result is not None
    if answer.question.arrivals == "closed-loop":
        lines.append(
            f"  arrivals: {result.num_following:,} of {answer.basis.num_requests:,} requests as"
            " long after the end of another one as in the recording, the others at their times"
        )
    if result.num_extrapolated:
        lines.append(
            f"  {result.num_extrapolated:,} of {result.num_steps:,} steps, and"
            f" {result.share_extrapolated:.0%} of the time, are larger than any recorded one"
        )
    if result.refused:
        name, reason = next(iter(result.refused.items()))
        lines.append(
            f"  {fmt.plural(len(result.refused), 'request')} refused with these settings, such as"
            f" {name}: {reason}"
        )
    return lines
