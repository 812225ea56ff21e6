"""A prediction as text and as JSON."""

from __future__ import annotations

import msgspec

from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_json, safe_line
from seqtop.whatif.predict import Prediction
from seqtop.whatif.prediction import Figure, describe

_WIDTH = 12
"""The cells of a figure."""
_MUCH_EXTRAPOLATED = 0.2
"""The share of steps larger than the recorded ones above which times say nothing."""


def as_json(prediction: Prediction) -> str:
    """Returns a prediction as indented JSON."""
    document = {"is_proven": prediction.is_proven, **msgspec.structs.asdict(prediction)}
    return safe_json(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def as_text(prediction: Prediction) -> str:
    """Returns a prediction as sentences, a table, and how it is known."""
    lines = [_proof(prediction)]
    if (first := prediction.first_difference) is not None:
        lines += [
            f"  recorded, step {first.step_a:,}: {first.a}",
            f"  repeated, step {first.step_b:,}: {first.b}",
            f"  because {first.cause}",
        ]
    if prediction.figures:
        lines += ["", *_changes(prediction), "", *_table(prediction.figures)]
        if prediction.changed:
            lines += ["", "requests that change most:"]
            lines += [f"  {describe(changed)}" for changed in prediction.changed]
        lines += ["", *_knowledge(prediction)]
    elif prediction.question.has_changes:
        lines.append("no prediction, since the recording cannot be repeated; --anyway makes one")
    return "\n".join(map(safe_line, lines))


def _proof(prediction: Prediction) -> str:
    equal, total = prediction.num_equal_steps, prediction.num_steps
    return f"unchanged settings: {equal:,} of {fmt.plural(total, 'step')} equal"


def _changes(prediction: Prediction) -> list[str]:
    question = prediction.question
    lines = [
        f"{name}: {prediction.recorded_settings[name]} → {value}"
        for name, value in prediction.settings.items()
    ]
    if question.scale_arrivals != 1:
        lines.append(f"arrivals: {question.scale_arrivals:g} times as fast")
    if question.without:
        lines.append(f"without {', '.join(question.without)}")
    return lines


def _table(figures: list[Figure]) -> list[str]:
    width = max(len(figure.name) for figure in figures)
    titles = "".join(f"{title:>{_WIDTH}}" for title in ("recorded", "model", "predicted", "change"))
    return [f"{'':{width}}{titles}", *(_row(figure, width) for figure in figures)]


def _row(figure: Figure, width: int) -> str:
    values = [
        _number(value, figure.unit)
        for value in (figure.recorded, figure.unchanged, figure.predicted)
    ]
    change = ""
    if figure.unchanged and figure.predicted is not None:
        change = f"{figure.predicted / figure.unchanged - 1:+.1%}"
    return f"{figure.name:{width}}{''.join(f'{cell:>{_WIDTH}}' for cell in (*values, change))}"


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return fmt.NOT_AVAILABLE
    if unit == "s":
        return fmt.seconds(value)
    return f"{value:,.1f}" if isinstance(value, float) and unit else f"{value:,.0f}"


def _knowledge(prediction: Prediction) -> list[str]:
    """Returns what is exact, what is estimated, and what is unknown."""
    lines = ["known from:"]
    if prediction.is_proven:
        lines.append("  decisions: the engine's own scheduler, which repeated the recording")
    else:
        lines.append("  decisions: a scheduler that does not repeat the recording")
    if count := prediction.num_free_lengths:
        lines.append(
            f"  lengths: as recorded; {count:,} of {prediction.num_requests:,} requests end by"
            " themselves and sample without a seed, so a real run may give them other lengths"
        )
    model, result = prediction.step_time, prediction.result
    if model is not None:
        error = "unknown" if model.held_out_error is None else f"{model.held_out_error:.0%}"
        lines.append(
            f"  times: at the recorded speed, {fmt.seconds(model.per_step)} a step +"
            f" {fmt.seconds(model.per_prefill_token)} a prefill token +"
            f" {fmt.seconds(model.per_decode_token)} a decode token; the error of a step that was"
            f" left out is {error} (median). Compare with the column model: the same with the"
            " recorded settings"
        )
    if result is not None and result.num_extrapolated:
        share = result.num_extrapolated / max(result.num_steps, 1)
        doubt = ", so the times say nothing" if share > _MUCH_EXTRAPOLATED else ""
        lines.append(
            f"  {result.num_extrapolated:,} of {result.num_steps:,} steps are larger than any"
            f" recorded one{doubt}"
        )
    if result is not None and result.cut:
        lines.append(
            f"  {fmt.plural(len(result.cut), 'request')} that had been aborted, or had not ended,"
            " ended when the recorded tokens were used up"
        )
    if result is not None and result.refused:
        name, reason = next(iter(result.refused.items()))
        lines.append(
            f"  {fmt.plural(len(result.refused), 'request')} refused with these settings, such as"
            f" {name}: {reason}"
        )
    return lines
