"""The header: the engine, its connection, its rates and the use of its KV cache."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from rich.cells import cell_len

from seqtop.history.step_series import Interval
from seqtop.sequence import SequenceStatus
from seqtop.state import not_available
from seqtop.state.condition import kv_use
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.transport.connection import ConnectionState
from seqtop.tui.chrome.base_header import BADGES, BaseHeader, gap
from seqtop.tui.rendering.bars import (
    KV_RAMP,
    bar,
    figure,
    graded,
    graded_spark,
    graded_style,
    grid,
    row,
    shortened,
    sparkline,
    spread,
)
from seqtop.tui.rendering.style import PLAIN, Line, fitted, line_width
from seqtop.tui.ui_state import UiState

_LEAST_BAR = 8
"""The cells of the bar of the KV cache at least."""
_MAX_NAME = 24
"""The cells of the engine's name that the sentence on its limit leaves at least."""
_LEAST_SPARK = 8
"""The cells of a sparkline at least."""
_WIDE = 110
"""From this width on, there is room for larger figures, and larger gaps between them."""
TIME_SECONDS = 5.0
"""Seconds before the moment on display to which the shares of time refer."""
PAUSED = ("‖ PAUSED", "badge-paused")


class Header(BaseHeader):
    """The engine, its connection, its rates and the use of its KV cache."""

    def __init__(self, ui: UiState, *, title: str) -> None:
        super().__init__(ui.lock)
        self._ui = ui
        self._title = title

    def lines(self, width: int) -> Sequence[Line]:
        return (
            identity(self._ui, width, self._title),
            throughput(self._ui, width),
            cache(self._ui, width),
        )


def badges(ui: UiState) -> Line:
    """Returns badges for a prediction, a recording, a pause and the connection."""
    recording = (*_prediction(ui), *_recording(ui))
    text, style = BADGES[ui.source.connection.state]
    if ui.source.connection.state is ConnectionState.LOST:
        text += f" {fmt.growing(float(int(ui.message_clock.silence)))}"
    if not ui.paused:
        return (*recording, (f" {text} ", style))
    paused = (f" {PAUSED[0]} ", PAUSED[1])
    # The state of the connection is left out only if it is live.
    if ui.source.connection.state is ConnectionState.LIVE:
        return (*recording, paused)
    return (*recording, paused, (f" {text} ", style))


def _prediction(ui: UiState) -> Line:
    """Returns the badge of a predicted run."""
    info = ui.state.info
    if info is None or not info.predicted_from:
        return ()
    return ((" PREDICTION ", "badge-alert"), (" ", PLAIN))


def _recording(ui: UiState) -> Line:
    """Returns the badge of a recording that is being made, with its size."""
    if (size := ui.recording.num_bytes) is None:
        return ()
    if ui.recording.error is not None:
        return ((" ✗ REC ENDED ", "badge-alert"), (" ", PLAIN))
    return ((f" ● REC {fmt.size(size)} ", "badge-alert"), (" ", PLAIN))


def identity(ui: UiState, width: int, title: str) -> Line:
    """Returns the line with engine, model, number format, device, and badges at the right."""
    right = badges(ui)
    room = width - line_width(right) - 2
    info = ui.state.info
    if info is None:
        left = row(
            [(0, ((title, "title"),)), (1, ((safe_line(ui.source.connection.endpoint), "dim"),))],
            room,
        )
        return spread(fitted(left, max(room, 1)), right, width)
    name = shortened(ui.source.name, _MAX_NAME) or info.engine_id
    verdict = _verdict(ui, room - min(cell_len(name), _MAX_NAME) - 2)
    left = _names(
        name,
        info.model,
        info.dtype,
        info.device,
        info.engine,
        info.block_size,
        ui.source.connection.endpoint,
        room - line_width(verdict),
    )
    return spread((*left, *verdict), right, width)


def _verdict(ui: UiState, room: int) -> Line:
    """Returns what limits the engine, in the longest form that fits; empty without room for one."""
    verdict = ui.verdict
    style = "waiting" if verdict.cause is not None and not ui.is_stale else "dim"
    for form in verdict.forms():
        text = ("last known: " if ui.is_stale else "") + safe_line(form)
        if cell_len(text) + 2 <= room:
            return (("  ", PLAIN), (text, style))
    return ()


@lru_cache(maxsize=16)
def _names(
    name: str,
    model: str,
    dtype: str,
    device: str,
    engine: str,
    block_size: int,
    endpoint: str,
    room: int,
) -> Line:
    """Returns the engine's names that fit into `room` cells. Cached, as they seldom change."""
    texts = (
        (0, name, "title"),
        # Engines without a name are called by their model.
        (1, "" if name.startswith(model) else model, "strong"),
        (2, dtype, "dim"),
        (2, device, "dim"),
        (3, engine, "dim"),
        (4, f"block size {block_size}", "dim"),
        (5, endpoint, "dim"),
    )
    left = row([(rank, ((safe_line(text), style),)) for rank, text, style in texts if text], room)
    return fitted(left, max(min(room, line_width(left)), 1))


def throughput(ui: UiState, width: int) -> Line:
    """Returns the line with steps, tokens per second and the number of sequences by status."""
    state, series = ui.state, ui.step_series
    # The rates of an engine that is gone are unknown, and its numbers of sequences are old.
    rates = None if ui.is_stale else series.last_second(state.time)
    counts: Sequence[int | None] = [*state.num_by_status]
    num_finished: int | None = state.num_finished
    if state.info is not None and not_available.REQUESTS in state.info.not_available:
        counts, num_finished = [None] * len(counts), None
    swaps = state.stats is not None and state.stats.num_swapped is not None
    style = "dim" if ui.is_stale else "strong"
    running = "dim" if ui.is_stale else "running"
    step = fmt.count(state.step) if state.step >= 0 else fmt.UNKNOWN
    more = 4 if width >= _WIDE else 0  # cells for larger figures
    items = [
        (0, 10 + more, figure("step", step)),
        (5, 10 + more, ((_rate(rates, "steps"), style), (" steps/s", "dim"))),
        (
            1,
            20 + more,
            (
                ("in/out ", "dim"),
                (_rate(rates, "prefill"), style),
                ("/", "dim"),
                # The figure that most look for, in the colour of new tokens.
                (_rate(rates, "generated"), "dim" if ui.is_stale else "delta"),
                (" tok/s", "dim"),
            ),
        ),
        (0, 12 + more, _count("●", running, counts[SequenceStatus.RUNNING], "running")),
        (0, 12 + more, _waiting(counts[SequenceStatus.WAITING], counts[SequenceStatus.RUNNING])),
        (4, 12, _count("⇄", "swapped", counts[SequenceStatus.SWAPPED], "swapped"))
        if swaps or counts[SequenceStatus.SWAPPED]
        else (9, 0, ()),
        (2, 13 + more, _count("✓", "finished", num_finished, "finished")),
        (6, 0, _time(ui)),
    ]
    line = grid(items, width, gap(width))
    num_seconds = _spark_width(width - line_width(line) - len("tok/s "))
    spark = sparkline(series.sums_by_second("generated", state.time, num_seconds), num_seconds)
    # In the colour of the figure: that of what runs is the colour of the badge in the line above.
    return (*line, ("tok/s ", "dim"), (spark, "delta")) if spark else line


def _spark_width(room: int) -> int:
    """Returns the seconds that a sparkline in `room` cells shows, 0 if these are too few."""
    return min(room, 60) if room >= _LEAST_SPARK else 0


def _rate(figures: Interval | None, name: str) -> str:
    return fmt.rate(None if figures is None else figures.rate(name))


def _time(ui: UiState) -> Line:
    """Returns the shares of the forward pass, the host and the rest in the last seconds.

    They add up to 100 %, and are unknown before the first steps.
    """
    series = ui.step_series
    shares = series.before(ui.state.time, TIME_SECONDS).shares() if len(series) else {}
    executing = "execute" if shares.get("execute") and not shares.get("forward") else "forward"
    texts = dict.fromkeys((executing, "host", "paced", "idle", "other"), fmt.UNKNOWN)
    if any(shares.values()):
        # In whole percent, so that the sum is exact.
        numbers = {part: round(100 * shares[part]) for part in texts if part != "other"}
        numbers["other"] = max(100 - sum(numbers.values()), 0)
        texts = {part: f"{number}%" for part, number in numbers.items()}
    spans: Line = (("time", "dim"),)
    for part, text in texts.items():
        style = "dim" if text in (fmt.UNKNOWN, "0%") else "strong"
        spans = (*spans, (f" {part} ", "dim"), (f"{text:<4}", style))
    return spans


def cache(ui: UiState, width: int) -> Line:
    """Returns the line with the KV cache's use, prefix hits, preemptions and problems."""
    state, connection = ui.state, ui.source.connection
    stats, info = state.stats, state.info
    problems: list[tuple[int, int, Line]] = [
        (rank, 0, ((f"{text} {fmt.count(number)}", "alert"),))
        for rank, text, number in (
            (1, "missed", connection.num_missed),
            (1, "errors", connection.num_errors),
            (1, "not published", state.not_published.num_messages if state.not_published else 0),
            (2, "unknown events", connection.num_unknown),
            (2, "anomalies", state.num_anomalies),
        )
        if number
    ]
    problems.append((1, 0, _findings(ui)))
    total = info.num_gpu_blocks if info else 0
    digits = len(fmt.count(total))
    used, cached = (stats.num_used_blocks, stats.num_cached_blocks) if stats else (None, None)
    # Cached blocks are evicted if blocks are needed: a pool without free and cached ones is full.
    free = fmt.count(stats.num_free_blocks if stats else None)
    reusable = not_available.count(cached) if stats else fmt.UNKNOWN
    of_all: Line = ((f" of {fmt.count(total or None)}", "dim"),)
    short: Line = ((f"{fmt.count(used)} used", PLAIN), *of_all)
    numbers: Line = ((f"{fmt.count(used)} used  {free} free + {reusable} cached", PLAIN),)
    parts = ((used or 0, "computed", "━"), (cached or 0, "cached", "═"))
    share = kv_use(stats, info) if stats and info else None
    use, heat = fmt.percent(share), graded_style(share or 0.0, KV_RAMP)
    use_style = heat if heat in KV_RAMP[-2:] else "strong"
    query = (stats.prefix_cache_hits, stats.prefix_cache_queries) if stats else (None, None)
    hits = figure("prefix hit rate", fmt.percent(*query))
    preempted = figure("preempted", fmt.count(stats.num_preemptions if stats else None))
    wide_bar = min(max(width // 5, _LEAST_BAR), 40)
    line: Line = ()
    most = -1
    for cells, figures, room in (
        (wide_bar, (*numbers, *of_all), 4 * digits + 27),
        (wide_bar, numbers, 3 * digits + 22),
        (_LEAST_BAR, numbers, 3 * digits + 22),
        (_LEAST_BAR, short, 2 * digits + 9),
    ):
        items: list[tuple[int, int, Line]] = [
            (0, cells + 8, (("KV ", "dim"), *_kv_bar(cells, total, parts), (f" {use}", use_style))),
            (2, room, figures),
            (4, 20, hits),
            (3, 12, preempted),
            *problems,
        ]
        drawn = grid(items, width, gap(width))
        num_shown = (figures[0] in drawn) + (preempted[-1] in drawn)
        if num_shown > most:
            line, most = drawn, num_shown
    num_seconds = _spark_width(width - line_width(line) - len("KV use "))
    blocks = ui.step_series.gauge_by_second("used", state.time, num_seconds)
    spark = sparkline(blocks, num_seconds, ceiling=float(total))
    return (*line, ("KV use ", "dim"), *graded_spark(spark, KV_RAMP)) if spark else line


def _kv_bar(width: int, total: float, parts: Iterable[tuple[float, str, str]]) -> Line:
    return graded(bar(width, total, parts), "computed", KV_RAMP)


def _findings(ui: UiState) -> Line:
    """Returns the numbers of errors and warnings that the checks have found, if any."""
    checker = ui.checks.checker
    if checker is None or not checker.num_findings:
        return ()
    errors, warnings = checker.num_errors, checker.num_warnings
    line: Line = (("checks: ", "alert" if errors else "waiting"),)
    if errors:
        line = (*line, (fmt.plural(errors, "error"), "alert"))
    if warnings:
        line = (
            *line,
            (", " if errors else "", PLAIN),
            (fmt.plural(warnings, "warning"), "waiting"),
        )
    return line


def _waiting(number: int | None, num_running: int | None) -> Line:
    """Returns the number of waiting sequences, hotter if they are more than those that run."""
    sign, (text, style), word = _count("○", "waiting", number, "waiting")
    if number and num_running is not None:
        style = "waiting" if number <= num_running else "preempted"
    return (sign, (text, style), word)


def _count(sign: str, style: str, number: int | None, word: str) -> Line:
    text = fmt.UNKNOWN if number is None else fmt.count(number)
    return (
        (sign, style if number else "dim"),
        (f" {text}", "strong" if number else "dim"),
        (f" {word}", "dim"),
    )
