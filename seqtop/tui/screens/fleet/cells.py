"""The columns and the cells of the list of engines."""

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from seqtop.history.step_series import Interval
from seqtop.sequence import SequenceStatus
from seqtop.state.condition import kv_use
from seqtop.state.sliding_window import Figures
from seqtop.text import format as fmt
from seqtop.text.column_layout import Column, fit
from seqtop.text.sanitize import safe_line, safe_text
from seqtop.transport.connection import ConnectionState
from seqtop.tui.chrome.header import badges
from seqtop.tui.rendering.bars import (
    ELLIPSIS,
    KV_RAMP,
    bar,
    crop_left,
    graded,
    graded_spark,
    sparkline,
)
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted, text_width
from seqtop.tui.ui_state import UiState

Cell: TypeAlias = Callable[[UiState, int], Line]
"""Draws a cell for an engine and a width; called under the lock of `ui`."""


_NEVER_DIM = {"engine", "state"}
"""The columns that are not dim for an engine that has stopped or is lost."""


@dataclass(frozen=True, kw_only=True)
class EngineColumn(Column):
    """A column of the list of engines."""

    help: str
    """Its meaning, for the help."""
    cell: Cell


@lru_cache(maxsize=64)
def arrange(width: int) -> tuple[EngineColumn, ...]:
    """Returns the columns that fit into `width` cells, two cells apart."""
    return fit(COLUMNS, width - 2, gap=2)


def row(columns: tuple[EngineColumn, ...], ui: UiState, outlying: Collection[str] = ()) -> Line:
    """Returns the row of one engine. Called under the lock of `ui`.

    Args:
        columns: The columns.
        ui: The engine.
        outlying: The keys of the columns in which it differs from the other engines.
    """
    spans: list[StyledText] = []
    is_over = _is_over(ui)
    for index, column in enumerate(columns):
        if index:
            spans.append(("  ", PLAIN))
        cell = fitted(column.cell(ui, column.width), column.width)
        if column.key in outlying:
            cell = tuple((text, "very-high") for text, _ in cell)
        if is_over and column.key not in _NEVER_DIM:
            cell = tuple((text, style if style == "track" else "dim") for text, style in cell)
        spans.extend(cell)
    return tuple(spans)


def _is_over(ui: UiState) -> bool:
    """Returns whether an engine has stopped or is lost: its figures are the last ones."""
    return ui.source.connection.state in {ConnectionState.LOST, ConnectionState.STOPPED}


def _engine(ui: UiState, width: int) -> Line:
    name, endpoint = ui.name, ui.source.connection.endpoint
    text = _shortened(name, width) if name == endpoint else safe_text(name)
    return ((text, "strong"),)


def _shortened(endpoint: str, width: int) -> str:
    """Returns an endpoint cut at its beginning: ports differ more often than hosts."""
    text = safe_text(endpoint)
    return text if text_width(text) <= width else ELLIPSIS + crop_left(text, width - 1)


def _model(ui: UiState, _: int) -> Line:
    info = ui.newest.info
    return ((safe_text(info.model) if info else fmt.UNKNOWN, PLAIN),)


def _kv(ui: UiState, width: int) -> Line:
    use = _kv_use(ui)
    if use is None:
        return ((fmt.UNKNOWN, "dim"),)
    drawn = graded(bar(width - 5, 1.0, [(use, "computed", "━")]), "computed", KV_RAMP)
    return (*drawn, (f"{fmt.percent(use):>5}", "strong"))


def _number(text: str, width: int, style: str = PLAIN) -> Line:
    return ((text.rjust(width), style),)


def _count(status: SequenceStatus, style: str) -> Cell:
    def cell(ui: UiState, width: int) -> Line:
        number = ui.newest.num_by_status[status]
        return _number(fmt.count(number), width, style if number else "dim")

    return cell


def _figures(ui: UiState) -> Interval | None:
    """Returns the figures of the last second of the engine, even while another time is shown."""
    return ui.step_series.last_second(ui.newest.time)


def output_rate(ui: UiState) -> float | None:
    """Returns the tokens that the engine generated in the last second."""
    figures = _figures(ui)
    return None if figures is None else figures.rate("generated")


def _kv_use(ui: UiState) -> float | None:
    stats, info = ui.newest.stats, ui.newest.info
    return None if stats is None or info is None else kv_use(stats, info)


def _rate(name: str) -> Cell:
    """Returns the cell of a rate; it is unknown for an engine that has stopped or is lost."""

    def cell(ui: UiState, width: int) -> Line:
        figures = _figures(ui)
        if _is_over(ui) or figures is None:
            return _number(fmt.UNKNOWN, width)
        return _number(fmt.rate(figures.rate(name)), width)

    return cell


def _preempted(ui: UiState, width: int) -> Line:
    stats = ui.newest.stats
    return _number(fmt.count(stats.num_preemptions) if stats else fmt.UNKNOWN, width)


def _step(ui: UiState, width: int) -> Line:
    step = ui.newest.step
    return _number(fmt.count(step) if step >= 0 else fmt.UNKNOWN, width)


def _output_history(ui: UiState, width: int) -> Line:
    values = ui.step_series.sums_by_second("generated", ui.newest.time, width)
    return ((sparkline(values, width).rjust(width), "running"),)


def _kv_history(ui: UiState, width: int) -> Line:
    values = ui.step_series.gauge_by_second("used", ui.newest.time, width)
    info = ui.newest.info
    top = float(info.num_gpu_blocks) if info else None
    return graded_spark(sparkline(values, width, top).rjust(width), KV_RAMP)


def percentiles(ui: UiState, figure: str) -> Figures:
    """Returns the percentiles of a latency over the last minute, in seconds."""
    return ui.latencies.windows[figure].figures()


def _latency(figure: str, percentile: str) -> Cell:
    def cell(ui: UiState, width: int) -> Line:
        return _number(fmt.seconds(getattr(percentiles(ui, figure), percentile)), width)

    return cell


def oldest_wait(ui: UiState) -> float:
    """Returns the longest time that a request now waits, or all wait for a step, in seconds."""
    state = ui.newest
    is_busy = state.num_by_status[SequenceStatus.RUNNING] > 0 and state.blocked.until > 0
    since_step = _known(state.time - state.blocked.until) if is_busy else 0.0
    return max(_known(ui.latencies.oldest_wait), since_step, 0.0)


def _oldest(ui: UiState, width: int) -> Line:
    wait = oldest_wait(ui)
    return _number(fmt.seconds(wait) if wait else fmt.UNKNOWN, width, "waiting" if wait else "dim")


def _limit(ui: UiState, width: int) -> Line:
    if ui.newest.info is None:
        return ((fmt.UNKNOWN, "dim"),)
    forms = [form.removeprefix("limited by ") for form in ui.verdict.forms()]
    text = next((form for form in forms if text_width(form) <= width), forms[-1] if forms else "")
    return ((safe_line(text), "waiting" if ui.verdict.cause is not None else "dim"),)


def _known(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _need(ui: UiState) -> float:
    """Returns how much an engine needs a person: by the doubled seconds of its oldest wait.

    Finer steps would move rows each second. A lost engine comes after those whose requests wait
    for seconds, and before all others.
    """
    if ui.source.connection.state is ConnectionState.LOST:
        return 0.5
    if _is_over(ui):
        return 0.0
    return math.floor(math.log2(min(max(oldest_wait(ui), 1.0), 1e9)))


def outlying(engines: Sequence[UiState]) -> list[set[str]]:
    """Returns for each engine the keys of the figures that are far above those of its peers.

    The peers are the other live engines of its model: three or more engines tell which is odd.
    """
    found: list[set[str]] = [set() for _ in engines]
    by_model: dict[str, dict[int, dict[str, float]]] = {}
    for number, ui in enumerate(engines):
        with ui.lock:
            info = ui.newest.info
            if info is not None and ui.source.connection.state is ConnectionState.LIVE:
                own = {key: _known(figure(ui)) for key, (figure, _) in _COMPARED.items()}
                by_model.setdefault(info.model, {})[number] = own
    for peers in by_model.values():
        for key, (_, least) in _COMPARED.items() if len(peers) >= _LEAST_PEERS else ():
            usual = statistics.median(own[key] for own in peers.values())
            for number, own in peers.items():
                if own[key] >= max(_OUTLYING * usual, least):
                    found[number].add(key)
    return found


_OUTLYING = 3.0
"""The multiple of the median from which on a figure is far above it."""
_LEAST_PEERS = 3
_COMPARED: dict[str, tuple[Callable[[UiState], float], float]] = {
    "oldest": (oldest_wait, 1.0),
    "ttft": (lambda ui: percentiles(ui, "ttft").p99, 0.5),
    "itl": (lambda ui: percentiles(ui, "itl").p99, 0.1),
}
"""The figures that are compared with those of peers, and the least seconds that stand out."""

Order: TypeAlias = Callable[[UiState], float]
"""Returns the figure that engines are sorted by, the largest first."""

ORDERS: dict[str, Order | None] = {
    "by the oldest wait": _need,
    "as given on the command line": None,
    "by waiting sequences": lambda ui: ui.newest.num_by_status[SequenceStatus.WAITING],
    "by KV use": lambda ui: _kv_use(ui) or 0.0,
    "by output tokens per second": lambda ui: output_rate(ui) or 0.0,
    "by TTFT p99": lambda ui: _known(percentiles(ui, "ttft").p99),
    "by ITL p99": lambda ui: _known(percentiles(ui, "itl").p99),
    "by preemptions": lambda ui: stats.num_preemptions if (stats := ui.newest.stats) else 0,
}
"""The orders of the list of engines, by their descriptions."""

COLUMNS = (
    EngineColumn(
        key="engine",
        title="Engine",
        help="name of the engine or of its pod, or its endpoint",
        width=20,  # the cells of `tcp://127.0.0.1:5557`
        max_width=28,  # the cells of `tcp://255.255.255.255:65535`
        priority=0,
        right=False,
        cell=_engine,
    ),
    EngineColumn(
        key="state",
        title="State",
        help="state of the connection, and since when",
        width=16,
        priority=0,
        right=False,
        cell=lambda ui, _: badges(ui),
    ),
    EngineColumn(
        key="model", title="Model", help="model", width=16, priority=6, right=False, cell=_model
    ),
    EngineColumn(
        key="running",
        title="Run",
        help="running sequences",
        width=5,
        priority=0,
        cell=_count(SequenceStatus.RUNNING, "running"),
    ),
    EngineColumn(
        key="waiting",
        title="Wait",
        help="waiting sequences",
        width=5,
        priority=0,
        cell=_count(SequenceStatus.WAITING, "waiting"),
    ),
    EngineColumn(
        key="oldest",
        title="Oldest",
        help="longest time that a request now waits, for a first token, to run again or for a step",
        width=7,
        priority=1,
        cell=_oldest,
    ),
    EngineColumn(
        key="kv",
        title="KV",
        help="share of the blocks that is in block tables",
        width=11,
        priority=1,
        right=False,
        cell=_kv,
    ),
    EngineColumn(
        key="out",
        title="Out tok/s",
        help="tokens generated in the last whole second",
        width=9,
        priority=2,
        cell=_rate("generated"),
    ),
    EngineColumn(
        key="limit",
        title="Limited by",
        help="what limited it in the last minute",
        width=24,
        max_width=64,
        priority=3,
        right=False,
        cell=_limit,
    ),
    EngineColumn(
        key="history",
        title="Out tok/s by second",
        help="the same, second by second",
        width=21,
        max_width=40,
        priority=8,
        cell=_output_history,
    ),
    EngineColumn(
        key="kv-history",
        title="KV by second",
        help="used blocks, second by second; full height is all",
        width=14,
        max_width=40,
        priority=9,
        cell=_kv_history,
    ),
    EngineColumn(
        key="ttft50",
        title="TTFT p50",
        help="median of the times to first token in the last minute",
        width=8,
        priority=8,
        cell=_latency("ttft", "p50"),
    ),
    EngineColumn(
        key="ttft",
        title="TTFT p99",
        help="their 99th percentile",
        width=8,
        priority=3,
        cell=_latency("ttft", "p99"),
    ),
    EngineColumn(
        key="itl50",
        title="ITL p50",
        help="median of the times between tokens in the last minute",
        width=7,
        priority=8,
        cell=_latency("itl", "p50"),
    ),
    EngineColumn(
        key="itl",
        title="ITL p99",
        help="their 99th percentile",
        width=7,
        priority=7,
        cell=_latency("itl", "p99"),
    ),
    EngineColumn(
        key="in",
        title="In tok/s",
        help="prompt tokens computed in the last whole second",
        width=9,
        priority=4,
        cell=_rate("prefill"),
    ),
    EngineColumn(
        key="steps",
        title="Steps/s",
        help="steps in the last whole second",
        width=7,
        priority=5,
        cell=_rate("steps"),
    ),
    EngineColumn(
        key="step", title="Step", help="number of the last step", width=7, priority=7, cell=_step
    ),
    EngineColumn(
        key="preempt",
        title="Preempted",
        help="preemptions since the start of the engine",
        width=9,
        priority=3,
        cell=_preempted,
    ),
    EngineColumn(
        key="endpoint",
        title="Endpoint",
        help="address that it publishes at",
        width=26,
        priority=10,
        right=False,
        cell=lambda ui, width: ((_shortened(ui.source.connection.endpoint, width), "dim"),),
    ),
)
