"""Answers as small documents: names that stay, with units, and at most `MAX_BYTES`.

The figures and the sentences are those of the functions that other commands print.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from seqtop.explain.explanation import Explanation
from seqtop.explain.report import describe, headline, share_of
from seqtop.history.step_series import Interval
from seqtop.sequence import latency
from seqtop.state import EngineState
from seqtop.state.condition import kv_use
from seqtop.state.latency import Latencies, minute_percentile
from seqtop.state.verdict import EngineVerdict, of_last_minute, of_whole
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.whatif import advice_report, report
from seqtop.whatif.advise import Advice, Trial, sentence
from seqtop.whatif.changed_requests import describe as describe_change
from seqtop.whatif.figures import Distribution, RunFigures
from seqtop.whatif.predict import Prediction
from seqtop.wire.messages import Setting

MAX_BYTES: Final = 2_000
"""The most bytes of an answer as JSON."""
_MAX_TEXTS: Final = (500, 200, 100, 50, 25)
"""The most characters of a text, shorter ones for an answer that is too long otherwise."""
_MAX_SHOWN: Final = 200
"""The most characters of a prompt or an output."""
_MAX_SLOWEST: Final = 3
_MAX_TRIALS: Final = 3
_DIGITS: Final = 4
"""The significant digits of a number that is not counted."""
_IN_SENTENCE: Final = ("output tokens per second", "preemptions", "TTFT p99", "E2E p99")
"""The rows of the table of a prediction that its sentence names."""


class ToolAnswer(msgspec.Struct, kw_only=True):
    """The parts of every answer."""

    sentence: str
    notes: list[str] = []
    """Sentences on what limits the trust in it."""
    num_left_out: int = 0
    """Entries of its lists and tables that were left out to keep it short."""

    shortened: ClassVar[tuple[str, ...]] = ("notes",)
    """The lists and tables that may be shortened, the first one first."""


class Limit(msgspec.Struct, kw_only=True):
    """The limit of an engine for some time."""

    sentence: str
    cause: str | None
    """The cause of waiting, or the key of a waste; `None` if nothing limits it."""
    share: float | None
    """The part of all waiting that the cause accounts for; of a waste, its own share."""
    judged_seconds: float
    waited_seconds: float | None
    """The seconds that all requests waited together."""
    request: str | None
    setting: str | None


class MainFigures(msgspec.Struct, kw_only=True):
    """The figures of an engine after its last step, and of the minute before; `None` is unknown."""

    num_running_sequences: int | None
    num_waiting_sequences: int | None
    kv_used_share: float | None
    """The part of the KV pool that sequences hold."""
    num_preemptions: int | None
    """Since the engine started."""
    num_finished_requests: int
    output_tokens_per_second: float | None
    ttft_p50_seconds: float | None
    ttft_p99_seconds: float | None
    itl_p50_seconds: float | None
    itl_p99_seconds: float | None
    e2e_p50_seconds: float | None
    e2e_p99_seconds: float | None


class RequestDuration(msgspec.Struct, kw_only=True):
    """A request that took long."""

    request: str
    seconds: float
    """From its arrival to its end, or until now."""
    has_ended: bool


class LimitsAnswer(ToolAnswer, kw_only=True):
    """The limits of an engine, and its main figures."""

    source: str
    is_live: bool
    engine: str
    model: str
    step: int
    last_minute: Limit
    whole_run: Limit
    figures: MainFigures
    slowest_requests: list[RequestDuration]

    shortened: ClassVar[tuple[str, ...]] = ("slowest_requests", "notes")


class TimePart(msgspec.Struct, kw_only=True):
    """A part of the time of a request."""

    kind: str
    cause: str | None
    seconds: float
    share: float | None
    """The part of the whole time of the request."""
    start_seconds: float | None
    """From the arrival on."""
    step: int | None
    text: str


class RequestAnswer(ToolAnswer, kw_only=True):
    """The parts of the time of a request."""

    request: str
    ttft_seconds: float | None
    e2e_seconds: float | None
    since_arrival_seconds: float | None
    finish_reason: str | None
    parts: list[TimePart]
    """The parts of its time, the longest first."""
    prompt_text: str | None = None
    """Its beginning, if texts are shown."""
    output_text: str | None = None

    shortened: ClassVar[tuple[str, ...]] = ("parts", "notes")


class PredictionAnswer(ToolAnswer, kw_only=True):
    """A run with other settings: columns are the recorded run, the model of it, the prediction."""

    is_proven: bool
    """True if the recorded run was repeated, decision by decision."""
    num_steps: int
    num_equal_steps: int
    settings: dict[str, list[Setting]]
    """The recorded and the predicted value of each changed setting."""
    columns: list[str]
    """The titles of the columns of `decisions` and `times`."""
    decisions: dict[str, list[float | None]]
    times: dict[str, list[float | None]]
    is_guess: bool
    """True if over a fifth of the time is in steps larger than any recorded one."""
    changed_requests: list[str]

    shortened: ClassVar[tuple[str, ...]] = (
        "changed_requests",
        "notes",
        "times",
        "decisions",
        "settings",
    )


class TriedSettings(msgspec.Struct, kw_only=True):
    """Settings that were tried."""

    settings: dict[str, Setting]
    """Those that differ from the recorded ones."""
    goodput_share: float
    """The part of the requests that met all objectives."""
    num_requests: int
    num_refused_requests: int
    num_preemptions: int
    ttft_p99_seconds: float | None
    tpot_p99_seconds: float | None
    highest_load_factor: float | None
    """The highest load that keeps the objectives, as a multiple of the recorded one."""
    is_guess: bool


class AdviceAnswer(ToolAnswer, kw_only=True):
    """The settings that meet objectives best."""

    is_best_so_far: bool
    """True if the time was up before the end of the search."""
    is_proven: bool | None
    """True if the recorded run was repeated, decision by decision; `None` if the time was up."""
    objectives_seconds: dict[str, float]
    settings: dict[str, list[Setting]]
    """The recorded and the advised value of each setting to change."""
    recorded_goodput_share: float | None
    advised_goodput_share: float | None
    num_settings_tried: int
    trials: list[TriedSettings]
    """The best of them, and the recorded settings."""
    not_searched: list[str]
    """Settings that were not tried."""

    shortened: ClassVar[tuple[str, ...]] = ("not_searched", "trials", "notes", "settings")


# --- What limits it


def limits(
    state: EngineState,
    name: str,
    minute: Interval,
    gaps: tuple[Iterable[float], Iterable[float]],
    *,
    is_live: bool,
) -> LimitsAnswer:
    """Returns what limits an engine now, or limited it in a recording.

    Args:
        state: The state.
        name: The endpoint or the file.
        minute: The steps of the last minute.
        gaps: When tokens came in the last minute, epoch seconds, and the times before each.
        is_live: True for an engine that runs.
    """
    last_minute, whole_run = _limit(of_last_minute(state)), _limit(of_whole(state))
    info = state.info
    latencies = Latencies()
    latencies.observe(state, None)
    latencies.set_gaps(*map(list, gaps))
    windows = latencies.now.windows
    times = {
        f"{figure}_p{percent}_seconds": minute_percentile(state, windows, figure, percent)
        for figure in ("ttft", "itl", "e2e")
        for percent in (50, 99)
    }
    least = [name for name, found in times.items() if found is not None and found.is_least]
    return LimitsAnswer(
        sentence=(last_minute if is_live else whole_run).sentence,
        notes=[f"requests still wait, so these may be higher: {', '.join(least)}"] if least else [],
        source=name,
        is_live=is_live,
        engine=info.engine if info is not None else "",
        model=info.model if info is not None else "",
        step=state.step,
        last_minute=last_minute,
        whole_run=whole_run,
        figures=_figures(
            state, minute, {name: found and _number(found.value) for name, found in times.items()}
        ),
        slowest_requests=_slowest(state),
    )


def _limit(verdict: EngineVerdict) -> Limit:
    return Limit(
        sentence=verdict.sentence,
        cause=verdict.cause,
        share=_number(verdict.share),
        judged_seconds=_number(verdict.seconds) or 0.0,
        waited_seconds=_number(verdict.waited),
        request=verdict.request_id,
        setting=verdict.setting,
    )


def _figures(
    state: EngineState, minute: Interval, times: Mapping[str, float | None]
) -> MainFigures:
    stats, info = state.stats, state.info
    return MainFigures(
        num_running_sequences=stats.num_running if stats else None,
        num_waiting_sequences=stats.num_waiting if stats else None,
        kv_used_share=_number(kv_use(stats, info) if stats and info else None),
        num_preemptions=stats.num_preemptions if stats else None,
        num_finished_requests=state.num_finished,
        output_tokens_per_second=_number(minute.rate("generated") if minute.seconds > 0 else None),
        **times,
    )


def _slowest(state: EngineState) -> list[RequestDuration]:
    """Returns the requests of a state that took longest, also if they have not ended."""
    found: list[RequestDuration] = []
    for request in state.requests.values():
        seconds = latency.e2e_latency(request.metrics)
        has_ended = request.finish_reason is not None
        if seconds is None and not has_ended:
            seconds = state.time - request.metrics.arrival_time
        if seconds is not None and 0 <= seconds < math.inf:
            slow = RequestDuration(
                request=request.request_id, seconds=_rounded(seconds), has_ended=has_ended
            )
            found.append(slow)
    return sorted(found, key=lambda slow: -slow.seconds)[:_MAX_SLOWEST]


# --- Why a request was slow


def explained(explanation: Explanation, texts: tuple[str | None, str | None]) -> RequestAnswer:
    """Returns where the time of a request went.

    Args:
        explanation: The explanation.
        texts: The prompt and the output, if they are shown.
    """
    parts, name = explanation.parts(), explanation.request_id
    metrics, end = explanation.metrics, explanation.metrics.finished_time
    since = (explanation.now if end is None else end) - metrics.arrival_time
    total = sum(part.seconds for part in parts)
    longest = sorted(parts, key=lambda part: -part.seconds)
    sentence_ = f"{name}: {headline(explanation)}"
    if longest:
        sentence_ += f"; the longest part: {share_of(longest[0], total, name)}"
    prompt, output = (None if text is None else text[:_MAX_SHOWN] for text in texts)
    return RequestAnswer(
        sentence=sentence_,
        notes=[explanation.error] if explanation.error else [],
        request=name,
        ttft_seconds=_number(latency.ttft(metrics)),
        e2e_seconds=_number(latency.e2e_latency(metrics)),
        since_arrival_seconds=_number(since),
        finish_reason=explanation.finish_reason,
        parts=[
            TimePart(
                kind=part.kind,
                cause=part.cause or None,
                seconds=_number(part.seconds) or 0.0,
                share=_number(part.seconds / total if total > 0 else None),
                start_seconds=_number(part.start),
                step=part.step,
                text=describe(part, name),
            )
            for part in longest
        ],
        prompt_text=prompt,
        output_text=output,
    )


# --- What if


def predicted(answer: Prediction) -> PredictionAnswer:
    """Returns a prediction, or why there is none."""
    basis, proof, result = answer.basis, answer.basis.proof, answer.predicted
    assert proof is not None, "it is of a recording"
    found = PredictionAnswer(
        sentence=f"no prediction, since the recording cannot be repeated: {_difference(answer)}",
        is_proven=basis.is_proven,
        num_steps=proof.num_steps,
        num_equal_steps=proof.num_equal_steps,
        settings={
            name: [answer.recorded_settings.get(name), value]
            for name, value in answer.settings.items()
        },
        columns=[],
        decisions={},
        times={},
        is_guess=False,
        changed_requests=[],
    )
    if result is None or answer.unchanged is None:
        return found
    model = answer.unchanged.figures
    runs = [basis.recorded, model, result.figures]
    notes = report.caveats(answer)
    if not basis.is_proven:
        notes.insert(0, f"the recording cannot be repeated: {_difference(answer)}")
    return replace(
        found,
        sentence=_prediction_sentence(answer, model, result.figures),
        notes=notes,
        columns=["recorded", "model", "predicted"],
        decisions=_rows(_decisions, runs),
        times={} if basis.times_unknown else _rows(_times, runs),
        is_guess=result.is_beyond,
        changed_requests=[describe_change(changed) for changed in answer.changed],
    )


def _difference(answer: Prediction) -> str:
    return "; ".join(line.strip() for line in report.basis_lines(answer.basis))


def _prediction_sentence(answer: Prediction, model: RunFigures, predicted_run: RunFigures) -> str:
    changes = [
        f"{name} {report.setting_text(answer.recorded_settings.get(name))} →"
        f" {report.setting_text(value)}"
        for name, value in answer.settings.items()
    ]
    if answer.question.scale_arrivals != 1:
        changes.append(f"arrivals {answer.question.scale_arrivals:g} times as fast")
    effects = [
        f"{name} {form(figure(model))} → {form(figure(predicted_run))}"
        for name, figure, form in report.figure_rows(answer.basis)
        if name in _IN_SENTENCE
    ]
    return f"PREDICTION, of no real run: with {', '.join(changes)}: {', '.join(effects)}"


def _rows(
    figures: Callable[[RunFigures], Mapping[str, float | None]], runs: Iterable[RunFigures]
) -> dict[str, list[float | None]]:
    columns = [figures(run) for run in runs]
    return {name: [_number(column[name]) for column in columns] for name in columns[0]}


def _decisions(run: RunFigures) -> dict[str, float | None]:
    return {
        "num_steps": run.num_steps,
        "num_preemptions": run.num_preemptions,
        "num_tokens_computed_twice": run.num_lost_tokens,
        "num_prefix_cache_hit_tokens": run.num_hit_tokens,
        "queue_p50_steps": run.queue_steps.p50,
        "queue_p99_steps": run.queue_steps.p99,
    }


def _times(run: RunFigures) -> dict[str, float | None]:
    times = {
        "output_tokens_per_second": run.throughput,
        "makespan_seconds": run.makespan,
    }
    for figure in ("ttft", "itl", "tpot", "e2e"):
        found: Distribution = getattr(run, figure)
        times |= {f"{figure}_p50_seconds": found.p50, f"{figure}_p99_seconds": found.p99}
    return times


# --- Advice


def advised(advice: Advice, seconds: float) -> AdviceAnswer:
    """Returns advice, or why there is none.

    Args:
        advice: The advice.
        seconds: The limit on the time for it.
    """
    best, recorded, proof = advice.best, advice.recorded, advice.basis.proof
    is_known = proof is None or proof.is_complete
    basis = "; ".join(line.strip() for line in report.basis_lines(advice.basis))
    if best is None:
        text = f"no advice, since the recording cannot be repeated: {basis}"
    else:
        text = sentence(advice)
        if advice.is_partial:
            text = f"the best so far, as the limit of {seconds:g} s was reached: {text}"
    notes = [] if is_known and advice.basis.is_proven else [basis]
    if best is not None and best.is_beyond:
        notes.append(
            "a guess: over a fifth of the time is in steps larger than any recorded one, whose"
            " times are not known"
        )
    if loads := advice_report.load_sentence(advice):
        notes.append(loads)
    if advice.refused:
        notes.append(f"{fmt.plural(len(advice.refused), 'setting')} refused by the engine")
    changes = best.settings if best is not None else {}
    shown = advice.trials[:_MAX_TRIALS]
    if recorded is not None and not any(trial is recorded for trial in shown):
        shown = [*shown[:-1], recorded]
    return AdviceAnswer(
        sentence=text,
        notes=notes if best is not None else [],
        is_best_so_far=advice.is_partial,
        is_proven=advice.basis.is_proven if is_known else None,
        objectives_seconds=advice.slo,
        settings={
            name: [advice.basis.settings.get(name), value] for name, value in changes.items()
        },
        recorded_goodput_share=_number(recorded.goodput if recorded is not None else None),
        advised_goodput_share=_number(best.goodput if best is not None else None),
        num_settings_tried=advice.num_tried,
        trials=[_tried(trial) for trial in shown],
        not_searched=[*advice.not_searched],
    )


def _tried(trial: Trial) -> TriedSettings:
    run = trial.figures
    return TriedSettings(
        settings=trial.settings,
        goodput_share=_rounded(trial.goodput),
        num_requests=run.num_requests,
        num_refused_requests=trial.num_refused,
        num_preemptions=run.num_preemptions,
        ttft_p99_seconds=_number(run.ttft.p99),
        tpot_p99_seconds=_number(run.tpot.p99),
        highest_load_factor=_number(trial.highest_load),
        is_guess=trial.is_beyond,
    )


# --- Short documents


def as_document(answer: ToolAnswer) -> dict[str, Any]:
    """Returns an answer as a JSON document of at most `MAX_BYTES`, whatever texts it has."""
    whole: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(answer))
    document = whole
    for length in _MAX_TEXTS:
        document = _shortened(whole, length)
        for name in answer.shortened:
            while _size(document) > MAX_BYTES and (entries := document[name]):
                if isinstance(entries, dict):
                    entries.popitem()
                else:
                    entries.pop()
                document["num_left_out"] += 1
        if _size(document) <= MAX_BYTES:
            break
    return document


def as_text(document: Mapping[str, Any]) -> str:
    """Returns a document as JSON on one line."""
    return msgspec.json.encode(document).decode()


def short_line(text: str) -> str:
    """Returns a text as one safe line of the length that an answer allows."""
    return str(_shortened(text, _MAX_TEXTS[0]))


def _size(document: Mapping[str, Any]) -> int:
    return len(msgspec.json.encode(document))


def _shortened(value: Any, length: int) -> Any:
    """Returns a copy of a value whose texts are safe, and have so many characters at most."""
    if isinstance(value, str):
        text = safe_line(value)
        return text if len(text) <= length else f"{text[: length - 1]}…"
    if isinstance(value, list):
        return [_shortened(item, length) for item in value]
    if isinstance(value, dict):
        return {_shortened(key, length): _shortened(item, length) for key, item in value.items()}
    return value


def _number(value: float | None) -> float | None:
    """Returns a number in a few digits; `None` if it is not known or not finite."""
    return None if value is None or not math.isfinite(value) else _rounded(value)


def _rounded(value: float) -> float:
    if isinstance(value, int):
        return value
    return float(f"{value:.{_DIGITS}g}")
