"""The report as one HTML page: no script, no network, inline SVG, light or dark as the reader's.

Every text of a recording is untrusted: it passes through `html_text`, which leaves no markup and no
control characters. The page's own policy forbids scripts and anything from elsewhere.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib.resources import files
from itertools import islice
from typing import NamedTuple

from seqtop import __version__
from seqtop.diff import verdict
from seqtop.diff.comparison import RunComparison
from seqtop.diff.same_requests import Figure
from seqtop.export import groups
from seqtop.export.lifecycle import RequestLifecycle
from seqtop.export.report import charts
from seqtop.export.report.charts import GanttBar, GanttRow, Layer
from seqtop.export.report.contents import (
    MAX_GROUPS,
    MAX_PREEMPTIONS,
    Contents,
    ExplainedRequest,
    is_served,
)
from seqtop.history.step_series import Interval
from seqtop.sequence import latency
from seqtop.state import not_available
from seqtop.state.percentiles import percentile
from seqtop.state.slo import FIGURES
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_text

MAX_ROWS = 300
"""The most requests of a recording whose Gantt chart has all of them."""
ROWS_AROUND = 120
"""The rows of the Gantt chart of more requests: those around the slowest one."""
_MAX_TEXT = 2_000
"""Characters of a prompt and of an output that `--with-text` shows."""
_MAX_SETTINGS = 60
TABLE = '<div class="scroll"><table>'
"""The begin of a table, which scrolls in a box of its own where it is too wide."""
_MAX_NAME = 200
_LABELLED_ROWS = 60
"""The most rows that are high enough for a label."""
_PERCENTILES = (50, 90, 99)
_SETTINGS = (
    "engine", "model", "dtype", "device", "block_size", "num_gpu_blocks", "num_cpu_blocks",
    "max_num_seqs", "max_num_batched_tokens", "max_model_len", "enable_chunked_prefill",
    "enable_prefix_caching", "preemption_mode", "queue_order",
)  # fmt: skip
_PHASES = {
    "queued": "queued",
    "prefill": "prefill",
    "decode": "decode",
    "preempted": "preempted",
    "swapped": "swapped",
}
"""The style of each kind of span."""
_MAX_VERDICT = 1_000
"""Characters of the sentence on what limited the engine."""
_TIME_PARTS = (
    ("scheduling", "queued", ("scheduler",)),
    ("model execution", "decode", ("forward", "execute")),
    ("rest of the step", "cached", ("rest",)),
    ("between steps", "preempted", ("host",)),
    ("paced on purpose", "prefill", ("paced",)),
    ("idle", "between", ("idle",)),
)
"""The name, the style and the parts in `seqtop.state.step_costs.TIME_PARTS` of each layer."""


class Tile(NamedTuple):
    """A figure of a run."""

    title: str
    value: str
    note: str


class _Scales(NamedTuple):
    """The ends of scales that the charts of all recordings have in common."""

    seconds: float
    blocks: float
    sequences: float
    tokens: float
    figures: dict[str, tuple[float, float]]
    """The lowest and highest sample of each distribution."""


def write(
    recordings: Sequence[Contents], *, with_text: bool, comparison: RunComparison | None = None
) -> Iterator[str]:
    """Yields the page of one recording, or of two beside each other.

    Args:
        recordings: The contents of the recordings.
        with_text: Whether the slowest requests are shown with prompt and output.
        comparison: The comparison of two recordings, if there are two.
    """
    title = " and ".join(html_text(contents.name) for contents in recordings)
    yield from head(title, is_wide=len(recordings) > 1)
    samples = [{**contents.samples(), **contents.lengths()} for contents in recordings]
    scales = _scales(recordings, samples)
    if comparison is not None:
        yield from _compared(comparison, recordings)
    yield _columns(_warnings(contents) + verdict_html(contents.verdict) for contents in recordings)
    tiles = [_tiles(*pair) for pair in zip(recordings, samples, strict=True)]
    if comparison is None:
        yield from _one_tiles(tiles[0])
    else:
        yield _table_of_tiles(tiles, recordings)
    yield _settings(recordings)
    for heading, section in (
        ("Over time", lambda contents, _: _over_time(contents, scales)),
        ("Distributions", lambda _, values: _distributions(values, scales)),
        ("What limited the batches", lambda contents, _: _limits(contents)),
        ("Requests", lambda contents, _: _gantt(contents, scales.seconds)),
        ("Groups of requests", lambda contents, _: _groups(contents)),
        ("Slowest requests", lambda contents, _: _slowest(contents, with_text=with_text)),
        ("Preemptions", lambda contents, _: _preemptions(contents)),
        ("Findings", lambda contents, _: _findings(contents)),
    ):
        yield f"\n<h2>{heading}</h2>"
        yield _columns(section(*pair) for pair in zip(recordings, samples, strict=True))
    yield foot("Times are from the start of the first recorded step.")


def head(title: str, *, is_wide: bool) -> Iterator[str]:
    """Yields the beginning of a page.

    Args:
        title: The title, as HTML.
        is_wide: Whether the page is as wide as two recordings beside each other.
    """
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    yield (
        '<meta http-equiv="Content-Security-Policy"'
        " content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    )
    yield '<meta name="viewport" content="width=device-width">'
    style = files("seqtop.export.report").joinpath("page.css").read_text(encoding="utf-8")
    yield f"<title>{title}: seqtop report</title><style>{style}</style></head>"
    yield f'<body class="{"two" if is_wide else "one"}"><h1>{title}</h1>'


def foot(remark: str) -> str:
    """Returns the end of a page, with a remark on its times."""
    return f'\n<p class="dim">Written by seqtop {__version__}. {remark}</p>\n</body></html>\n'


def html_text(text: str, *, limit: int = _MAX_NAME, newline: str = " ") -> str:
    """Returns a text from a recording as HTML text: the first `limit` characters."""
    shown = safe_text(text[:limit], newline=newline)
    return escape(shown + ("…" if len(text) > limit else ""))


def _columns(columns: Iterator[str]) -> str:
    return f'<div class="columns">{"".join(f"<div>{column}</div>" for column in columns)}</div>'


def _warnings(contents: Contents) -> str:
    """Returns what has to be known before anything else is read."""
    sentences = []
    info = contents.info
    if info is not None and info.predicted_from:
        sentences.append(
            f"A PREDICTION by seqtop whatif from {html_text(info.predicted_from)}, no run of an"
            " engine."
        )
    if contents.damage is not None:
        sentences.append(f"{html_text(contents.damage)}.")
    if len(contents.runs) > 1:
        sentences.append(
            f"The recording has {len(contents.runs):,} runs of the engine; the settings are those"
            " of the last one."
        )
    lost = [(time, text) for time, text in contents.gaps]
    if lost:
        first = ", ".join(f"{text} at {_after(time, contents)}" for time, text in lost[:5])
        more = f" and {len(lost) - 5:,} more" if len(lost) > 5 else ""
        sentences.append(f"{fmt.plural(len(lost), 'gap')} in the recorded time: {first}{more}.")
    if not contents.steps:
        sentences.append("The recording has no step.")
    return "".join(f'<p class="warning">{sentence}</p>' for sentence in sentences)


def verdict_html(sentence: str) -> str:
    """Returns a sentence on a run, or on two."""
    text = html_text(f"{sentence[:1].upper()}{sentence[1:]}.", limit=_MAX_VERDICT)
    return f'<p class="verdict">{text}</p>'


def _compared(comparison: RunComparison, recordings: Sequence[Contents]) -> Iterator[str]:
    """Yields the verdict on two runs, and the figures of both with their changes."""
    yield verdict_html(verdict.sentence(comparison))
    names = (f"{letter}: {html_text(it.name)}" for letter, it in zip("AB", recordings, strict=True))
    heads = "".join(f'<th class="number">{name}</th>' for name in (*names, "change"))
    count = fmt.plural(comparison.num_requests, "request")
    for title, of_requests in ((f"The {count} of both", True), ("In the recording", False)):
        figures = [figure for figure in comparison.figures if figure.of_requests is of_requests]
        rows = "".join(map(_compared_row, figures))
        yield f"{TABLE}<tr><th>{title}</th>{heads}</tr>{rows}</table></div>"
    sentences = [*verdict.remarks(comparison)]
    if sentences:
        yield f'<p class="dim">{html_text(". ".join(sentences), limit=_MAX_VERDICT)}.</p>'


def _compared_row(figure: Figure) -> str:
    a = verdict.value_text(figure.a, figure.unit, is_least=figure.a_is_least)
    b = verdict.value_text(figure.b, figure.unit, is_least=figure.b_is_least)
    unit = "" if figure.unit in ("s", "requests", "times", "share") else f" ({figure.unit})"
    style = {True: " better", False: " worse", None: ""}[figure.is_better]
    return (
        f"<tr><th>{html_text(figure.name + unit)}</th>"
        f'<td class="number">{a}</td><td class="number">{b}</td>'
        f'<td class="number{style}">{verdict.change_text(figure)}</td></tr>'
    )


def _after(time: float, contents: Contents) -> str:
    """Formats a time from the start of the first recorded step."""
    return fmt.seconds(time - contents.start)


def _tiles(contents: Contents, samples: dict[str, list[float]]) -> list[Tile]:
    outcomes = contents.outcomes()
    steps = contents.steps
    seconds = contents.duration
    generated = sum(interval.sums["generated"] for interval in contents.intervals)
    prefilled = sum(interval.sums["prefill"] for interval in contents.intervals)
    per_second = (lambda amount: fmt.rate(amount / seconds)) if seconds > 0 else _unknown
    tiles = [
        Tile(
            "Requests",
            fmt.count(outcomes.total()),
            ", ".join(f"{html_text(name)} {fmt.count(n)}" for name, n in outcomes.most_common(6)),
        ),
        Tile("Output tokens per second", per_second(generated), f"{fmt.count(generated)} tokens"),
        Tile(
            "Prompt tokens per second",
            per_second(prefilled),
            f"{fmt.count(prefilled)} computed, of prompts",
        ),
    ]
    for key, title in FIGURES.items():
        values = samples[key]
        p50, p90, p99 = (fmt.seconds(percentile(values, percent)) for percent in _PERCENTILES)
        noun = "gap" if key == "itl" else "request"
        note = f"p90 {p90}, p99 {p99}, {fmt.plural(len(values), noun)}"
        if num_open := contents.num_without(key):
            note += f"; {fmt.count(num_open)} more had not come so far"
        tiles.append(Tile(f"{title}, p50", p50, note))
    if contents.slo:
        served = sum(
            is_served(lifecycle) for run in contents.runs for lifecycle in run.requests.values()
        )
        tiles.append(
            Tile(
                "Goodput, requests per second",
                per_second(contents.num_met),
                f"{fmt.count(contents.num_met)} of {fmt.count(served)} met {contents.slo}",
            )
        )
    stats = steps[-1].stats if steps else None
    tiles.append(
        Tile(
            "Prefix cache hits",
            fmt.percent(stats.prefix_cache_hits, stats.prefix_cache_queries)
            if stats
            else fmt.UNKNOWN,
            "of prompt tokens, since the engine's start",
        )
    )
    lost = sum(preemption.num_lost_tokens for preemption in contents.preemptions)
    tiles.append(
        Tile(
            "Preemptions",
            fmt.count(sum(step.num_preempted for step in steps)),
            f"{fmt.plural(lost, 'computed token')} lost",
        )
    )
    peak = max((step.stats.num_used_blocks for step in steps), default=None)
    blocks = contents.info.num_gpu_blocks if contents.info else None
    tiles += [
        Tile(
            "KV blocks used at most",
            fmt.percent(peak, blocks),
            f"{fmt.count(peak)} of {fmt.count(blocks)}",
        ),
        Tile("Recorded time", fmt.seconds(seconds), f"{fmt.count(len(steps))} steps"),
    ]
    return tiles


def _unknown(_: float) -> str:
    return fmt.UNKNOWN


def _one_tiles(tiles: list[Tile]) -> Iterator[str]:
    yield '<div class="tiles">'
    for tile in tiles:
        yield (f'<div class="tile">{tile.title}<b>{tile.value}</b><small>{tile.note}</small></div>')
    yield "</div>"


def _table_of_tiles(tiles: list[list[Tile]], recordings: Sequence[Contents]) -> str:
    heads = "".join(f'<th colspan="2">{html_text(contents.name)}</th>' for contents in recordings)
    # Those of the same requests, with those that had not ended, are compared above.
    compared = {f"{FIGURES[key]}, p50" for key in ("ttft", "tpot", "queue", "e2e")}
    titles = dict.fromkeys(
        tile.title for column in tiles for tile in column if tile.title not in compared
    )
    rows = []
    for title in titles:
        cells = ""
        for column in tiles:
            tile = next((tile for tile in column if tile.title == title), None)
            value, note = (tile.value, tile.note) if tile else (fmt.UNKNOWN, "")
            cells += f'<td class="number"><b>{value}</b></td><td class="dim">{note}</td>'
        rows.append(f"<tr><th>{title}</th>{cells}</tr>")
    return f"{TABLE}<tr><th></th>{heads}</tr>{''.join(rows)}</table></div>"


def _settings(recordings: Sequence[Contents]) -> str:
    """Returns the settings, folded unless those of two recordings differ."""
    columns = [_settings_of(contents) for contents in recordings]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = []
    is_open = ""
    for name in islice(names, _MAX_SETTINGS):
        values = [column.get(name, fmt.UNKNOWN) for column in columns]
        is_different = len(set(values)) > 1 and name != "recorded"
        is_open = " open" if is_different else is_open
        style = ' class="differs"' if is_different else ""
        cells = "".join(f"<td>{value}</td>" for value in values)
        rows.append(f"<tr{style}><th>{name}</th>{cells}</tr>")
    if len(recordings) > 1:
        rows.insert(
            0,
            "<tr><th></th>"
            + "".join(f"<th>{html_text(it.name)}</th>" for it in recordings)
            + "</tr>",
        )
    return (
        f"<details{is_open}><summary><h2>Engine and settings</h2></summary>"
        f"{TABLE}{''.join(rows)}</table></div></details>"
    )


def _settings_of(contents: Contents) -> dict[str, str]:
    """Returns what describes a run, by name, as HTML."""
    settings = {"recorded": _period(contents)}
    info = contents.info
    if info is None:
        return settings
    settings |= {name: html_text(str(_plain(getattr(info, name)))) for name in _SETTINGS}
    settings |= {
        html_text(name): html_text(str(_plain(value)))
        for name, value in info.scheduler_settings.items()
    }
    if info.not_available:
        entries = not_available.by_reason(info.not_available)
        settings["not available"] = "; ".join(
            f"{html_text(titles)} ({html_text(reason)})" for titles, reason in entries
        )
    if info.redacted:
        settings["redacted"] = "texts and token ids were removed before recording"
    return settings


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return fmt.UNKNOWN if value is None else value


def _period(contents: Contents) -> str:
    return f"{date_text(contents.start)} to {date_text(contents.end)}"


def date_text(time: float) -> str:
    """Formats epoch seconds as a date and a time of day in UTC."""
    try:
        moment = datetime.datetime.fromtimestamp(time, datetime.UTC)
    except (OverflowError, ValueError, OSError):  # beyond the range of the calendar
        return fmt.UNKNOWN
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _scales(recordings: Sequence[Contents], samples: Sequence[dict[str, list[float]]]) -> _Scales:
    intervals = [interval for contents in recordings for interval in contents.intervals]
    infos = [contents.info for contents in recordings if contents.info]
    figures = {}
    for key in samples[0]:
        ends = [
            value for values in samples for it in (values[key],) if it for value in (it[0], it[-1])
        ]
        low, high = max(min(ends, default=1.0), 1e-6), max(*ends, 1e-6) if ends else 1.0
        # A queue time of zero would make the scale so long that nothing else is seen.
        figures[key] = (max(low, high / 1e4), max(high, low * 1.01))
    return _Scales(
        seconds=max(contents.duration for contents in recordings),
        blocks=max((float(info.num_gpu_blocks) for info in infos), default=0.0)
        or charts.round_up(max((it.gauges.get("used", 0.0) for it in intervals), default=1.0)),
        sequences=charts.round_up(
            max((_gauge(it, "running") + _gauge(it, "waiting") for it in intervals), default=1.0)
        ),
        tokens=charts.round_up(
            max((it.rate("prefill") + it.rate("decode") for it in intervals), default=1.0)
        ),
        figures=figures,
    )


def _gauge(interval: Interval, name: str) -> float:
    return interval.gauges.get(name, 0.0)


def _over_time(contents: Contents, scales: _Scales) -> str:
    if not contents.intervals:
        return "<p>No time is recorded.</p>"
    # Each recording takes as much of the common axis as it is long.
    count = round(len(contents.intervals) * scales.seconds / contents.duration)
    intervals: list[Interval | None] = [*contents.intervals]
    intervals += [None] * min(max(count - len(intervals), 0), 100 * len(intervals))

    def gauge(name: str, label: str, style: str) -> Layer:
        return Layer(label, style, [it and it.gauges.get(name) for it in intervals])

    def known(value: Callable[[Interval], float]) -> list[float | None]:
        return [value(it) if it is not None and it.gauges else None for it in intervals]

    blocks = [gauge("used", "used", "decode"), gauge("cached", "cached, reusable", "cached")]
    sequences = [gauge("running", "running", "decode"), gauge("waiting", "waiting", "queued")]
    tokens = [
        Layer("prefill", "prefill", known(lambda interval: interval.rate("prefill"))),
        Layer("decode", "decode", known(lambda interval: interval.rate("decode"))),
    ]
    times = [
        Layer(name, style, [it and _share(it, parts) for it in intervals])
        for name, style, parts in _TIME_PARTS
    ]
    return "".join(
        f"<figure><h3>{title}</h3>{charts.legend([layer[:2] for layer in layers])}"
        f"{charts.stacked(layers, top, scales.seconds, title, form)}</figure>"
        for title, layers, top, form in (
            ("KV-cache blocks", blocks, scales.blocks, fmt.count),
            ("Sequences", sequences, scales.sequences, fmt.count),
            ("Tokens per second", tokens, scales.tokens, fmt.count),
            ("The engine's time", times, 1.0, fmt.percent),
        )
    )


def _share(interval: Interval, parts: tuple[str, ...]) -> float | None:
    """Returns the share of some parts of the time; `None` if nothing is recorded."""
    shares = interval.shares()
    return sum(shares[part] for part in parts) if interval.gauges else None


def _distributions(samples: dict[str, list[float]], scales: _Scales) -> str:
    figures = []
    titles = {**FIGURES, "prompt": "Prompt tokens", "output": "Output tokens"}
    for key, title in titles.items():
        values = samples[key]
        if not values:
            figures.append(f"<figure><h3>{title}</h3><p>Unknown for all requests.</p></figure>")
            continue
        form = fmt.count if key in ("prompt", "output") else fmt.seconds
        marks = [
            (f"p{percent}", value)
            for percent in _PERCENTILES
            if (value := percentile(values, percent)) is not None
        ]
        caption = ", ".join(f"{name} {form(value)}" for name, value in marks)
        low = scales.figures[key][0]
        below = ""
        if values[0] < low and form(values[0]) != form(low):
            below = f"; the first bar also has all below {form(low)}"
        figures.append(
            f"<figure><h3>{title}</h3><figcaption>{caption}, largest {form(values[-1])}{below}"
            f"</figcaption>{charts.histogram(values, scales.figures[key], marks, title, form)}"
            "</figure>"
        )
    return "".join(figures)


def _limits(contents: Contents) -> str:
    shares = contents.limits()
    num_steps = sum(share.num_steps for share in shares)
    seconds = math.fsum(share.seconds for share in shares)
    rows = "".join(
        f"<tr><td>{html_text(share.label)}</td>"
        f"<td>{charts.share_bar(share.num_steps / num_steps, 'queued')}</td>"
        f'<td class="number">{fmt.percent(share.num_steps, num_steps)}</td>'
        f'<td class="number">{fmt.count(share.num_steps)}</td>'
        f'<td class="number">{fmt.percent(share.seconds, seconds)}</td></tr>'
        for share in shares
    )
    return (
        "<p>Why a step ran no more sequences: the reason that the scheduler gave for the head of"
        f" its queue.</p>{TABLE}<tr><th>limited by</th><th></th>"
        '<th class="number">of steps</th><th class="number">steps</th>'
        f'<th class="number">of their time</th></tr>{rows}</table></div>'
    )


def _gantt(contents: Contents, seconds: float) -> str:
    lifecycles = contents.lifecycles
    if not lifecycles:
        return "<p>No request is recorded.</p>"
    start, shown = contents.start, lifecycles
    which = f"All {fmt.plural(len(lifecycles), 'request')}, in order of arrival."
    if len(lifecycles) > MAX_ROWS:
        shown, which = _around_slowest(lifecycles, contents)
        start = _clipped(shown[0].request.metrics.arrival_time, start, contents.end)
        seconds = max(_clipped(_last_time(it), start, contents.end) for it in shown) - start
        which += f" The axis begins {_after(start, contents)} after the first recorded step."
    before = sum(
        lifecycle.request.metrics.arrival_time < contents.start for lifecycle in lifecycles
    )
    if before:
        which += f" {before:,} arrived before the first recorded step."
    row_height = 14 if len(shown) <= _LABELLED_ROWS else 6
    end = start + seconds
    rows = [_gantt_row(lifecycle, start, min(end, contents.end)) for lifecycle in shown]
    names = [*_PHASES.items(), ("between steps", "between")]
    return (
        f"<p>{which}</p>{charts.legend(names)}"
        f"{charts.gantt(rows, seconds, row_height, 'Phases of requests over time')}"
    )


def _around_slowest(
    lifecycles: list[RequestLifecycle], contents: Contents
) -> tuple[list[RequestLifecycle], str]:
    """Returns the requests that arrived around the slowest one, and a sentence on them."""
    if not contents.slowest:
        shown = lifecycles[:ROWS_AROUND]
        return shown, f"The first {len(shown):,} of {len(lifecycles):,} requests."
    slowest = contents.slowest[0].lifecycle
    middle = next(number for number, it in enumerate(lifecycles) if it is slowest)
    first = min(max(middle - ROWS_AROUND // 2, 0), len(lifecycles) - ROWS_AROUND)
    shown = lifecycles[first : first + ROWS_AROUND]
    return shown, (
        f"{len(shown):,} of {len(lifecycles):,} requests: those that arrived around"
        f" {html_text(slowest.request.request_id)}, the slowest."
    )


def _last_time(lifecycle: RequestLifecycle) -> float:
    """Returns the time at which a request ended, or at which it was last seen."""
    end = lifecycle.request.metrics.finished_time
    return lifecycle.until if end is None else end


def _clipped(time: float, start: float, end: float) -> float:
    """Returns the nearest time from `start` to `end`; `end` for one that no clock can measure."""
    return min(max(time, start), end) if math.isfinite(time) else end


def _gantt_row(lifecycle: RequestLifecycle, start: float, end: float) -> GanttRow:
    """Returns the row of a request in a chart from `start` to `end`, epoch seconds."""
    request = lifecycle.request

    last = _last_time(lifecycle)
    times = [("between", request.metrics.arrival_time, last)]
    times += [
        (_PHASES[span.kind], span.start, last if span.end is None else span.end)
        for span in request.spans
    ]
    bars = [
        GanttBar(style, _clipped(first, start, end) - start, _clipped(until, start, end) - start)
        for style, first, until in times
    ]
    name = safe_text(request.request_id[:_MAX_NAME])
    title = (
        f"{name}: {fmt.plural(request.num_prompt_tokens, 'prompt token')},"
        f" TTFT {fmt.seconds(latency.ttft(request.metrics))},"
        f" E2E {fmt.seconds(latency.e2e_latency(request.metrics))},"
        f" {safe_text(request.finish_reason or 'unfinished')}"
    )
    return GanttRow(name, title, [bar for bar in bars if bar.end > bar.start])


def _slowest(contents: Contents, *, with_text: bool) -> str:
    listed = [*contents.unfinished, *contents.slowest]
    none = "" if contents.slowest else "<p>No request finished.</p>"
    if not listed:
        return none
    rows = "".join(_slow_row(slow, contents, with_text=with_text) for slow in listed)
    finished = "finished requests with the longest end-to-end latency"
    which = f"The {finished}"
    if contents.unfinished:
        then = f", and then the {finished}" if contents.slowest else ""
        which = f"The requests without an end that have waited longest{then}"
    return (
        f"{none}<p>{which}, and the longest parts of their time.</p>"
        '<div class="scroll"><table class="slow"><tr><th>request</th>'
        '<th class="number">arrived</th><th class="number">prompt</th><th class="number">output'
        f"</th><th>latency</th></tr>{rows}</table></div>"
    )


def _slow_row(slow: ExplainedRequest, contents: Contents, *, with_text: bool) -> str:
    request, sequences = slow.lifecycle.request, slow.lifecycle.sequences
    parts = "".join(f"<li>{html_text(part, limit=400)}</li>" for part in slow.parts)
    row = (
        f"<tr><td>{html_text(request.request_id)}</td>"
        f'<td class="number">{_after(request.metrics.arrival_time, contents)}</td>'
        f'<td class="number">{fmt.count(request.num_prompt_tokens)}</td>'
        f'<td class="number">{fmt.count(sum(len(it.output_token_ids) for it in sequences))}</td>'
        f"<td>{html_text(slow.headline)}<ul>{parts}</ul>"
    )
    if with_text:
        texts = [("prompt", request.prompt or ""), *(("output", it.text) for it in sequences)]
        for name, text in texts:
            shown = html_text(text, limit=_MAX_TEXT, newline="\n") if text else "unknown"
            row += f"<details><summary>{name}</summary><pre>{shown}</pre></details>"
    return f"{row}</td></tr>"


def _groups(contents: Contents) -> str:
    table = contents.groups
    if not table.groups:
        return "<p>No request is recorded.</p>"
    key = html_text(table.key)
    titles = "".join(f'<th class="number">{title}</th>' for title in groups.TITLES)
    rows = "".join(
        f"<tr><th>{html_text(group.name) or '(none)'}</th>"
        + "".join(
            f'<td class="number">{cell}</td>' for cell in groups.cells(group, table.num_used_blocks)
        )
        + "</tr>"
        for group in table.groups[:MAX_GROUPS]
    )
    number = len(table.groups)
    which = f"The first {MAX_GROUPS} of {number:,} groups" if number > MAX_GROUPS else "Groups"
    moment = (
        "" if table.step is None else f" after step {table.step:,}, when most blocks were in use"
    )
    return (
        f"<p>{which} by {key}, those with the most KV blocks first. Running, Waiting, Blocks and KV"
        f" (the share of the blocks in use) are those{moment}; the rest is of the whole run.</p>"
        f"{TABLE}<tr><th>{key}</th>{titles}</tr>{rows}</table></div>"
    )


def _preemptions(contents: Contents) -> str:
    preemptions = contents.preemptions
    if not preemptions:
        return "<p>No preemption is recorded.</p>"
    shown = preemptions[:MAX_PREEMPTIONS]
    rows = "".join(
        f'<tr><td class="number">{_after(preemption.time, contents)}</td>'
        f'<td class="number">{preemption.step:,}</td>'
        f"<td>{html_text(preemption.text, limit=600)}</td></tr>"
        for preemption in shown
    )
    which = (
        f"The {len(shown)} of {len(preemptions):,} that lost most computed tokens."
        if len(shown) < len(preemptions)
        else f"{fmt.plural(len(preemptions), 'preemption')}, those that lost most tokens first."
    )
    return (
        f'<p>{which}</p>{TABLE}<tr><th class="number">after</th><th class="number">step</th>'
        f"<th></th></tr>{rows}</table></div>"
    )


def _findings(contents: Contents) -> str:
    findings = contents.findings
    scope = (
        f"All {fmt.plural(findings.num_steps, 'step')} were checked."
        if findings.is_whole
        else f"The first {findings.num_steps:,} of {len(contents.steps):,} steps were checked;"
        " seqtop check checks all."
    )
    if not findings.counts:
        return f"<p>{scope} No rule was broken.</p>"
    counts = "".join(
        f'<tr><td class="number">{number:,}</td><td>{escape(rule)}</td></tr>'
        for rule, number in findings.counts
    )
    sentences = "".join(f"<li>{html_text(text, limit=600)}</li>" for text in findings.sentences)
    return (
        f'<p>{scope}</p>{TABLE}<tr><th class="number">findings</th><th>rule</th></tr>'
        f"{counts}</table></div><h3>The first findings</h3><ul>{sentences}</ul>"
    )
