"""The columns and the cells of the list of engines."""

import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from seqtop.state.condition import kv_use
from seqtop.state.imbalance import imbalance
from seqtop.state.summary import forms, group_of
from seqtop.text import format as fmt
from seqtop.text.column_layout import Column, fit
from seqtop.text.sanitize import safe_line, safe_text
from seqtop.transport.connection import ConnectionState
from seqtop.tui.chrome.header import badges
from seqtop.tui.rendering.bars import (
    KV_RAMP,
    bar,
    graded,
    graded_spark,
    shortened,
    sparkline,
)
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted, text_width
from seqtop.tui.ui_state import UiState
from seqtop.wire.messages import EngineSummary

Cell: TypeAlias = Callable[[UiState, int], Line]
"""Draws a cell for an engine and a width; called under the lock of `ui`."""
Figure: TypeAlias = Callable[[EngineSummary], float | None]
"""Returns a figure of an engine; `None` if it is not known."""


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


def group_row(engines: Sequence[UiState]) -> Line:
    """Returns the line above the engines of one group: their model, their sums, an imbalance."""
    live = [ui for ui in engines if ui.source.connection.state is ConnectionState.LIVE]
    known = [ui.summary for ui in live if ui.summary is not None]
    uneven = imbalance([ui.named for ui in live if ui.named is not None])
    first = next((ui.summary for ui in engines if ui.summary is not None), None)
    model, role = ("engines that are not known yet", "") if first is None else group_of(first)
    running, waiting = (
        sum(own.num_running for own in known),
        sum(own.num_waiting for own in known),
    )
    return (
        (safe_line(" ".join(filter(None, (model, role)))), "title"),
        (f"  {fmt.plural(len(engines), 'engine')}, {len(live)} live", "dim"),
        ("  ●", "running"),
        (f" {fmt.count(running)} running", PLAIN),
        ("  ○", "waiting"),
        (f" {fmt.count(waiting)} waiting", PLAIN),
        *((("  ", PLAIN), (safe_line(uneven), "waiting")) if uneven else ()),
    )


def _is_over(ui: UiState) -> bool:
    """Returns whether an engine has stopped or is lost: its figures are the last ones."""
    return ui.source.connection.state in {ConnectionState.LOST, ConnectionState.STOPPED}


def _engine(ui: UiState, width: int) -> Line:
    is_place = ui.name in (ui.source.name, ui.source.connection.endpoint)
    return ((shortened(ui.name, width) if is_place else safe_text(ui.name), "strong"),)


def _model(ui: UiState, _: int) -> Line:
    return ((safe_text(ui.summary.model) if ui.summary else fmt.UNKNOWN, PLAIN),)


def _kv(ui: UiState, width: int) -> Line:
    use = _kv_use(ui)
    if use is None:
        return ((fmt.UNKNOWN, "dim"),)
    drawn = graded(bar(width - 5, 1.0, [(use, "computed", "━")]), "computed", KV_RAMP)
    return (*drawn, (f"{fmt.percent(use):>5}", "strong"))


def _number(text: str, width: int, style: str = PLAIN) -> Line:
    return ((text.rjust(width), style),)


def _count(figure: Figure, style: str) -> Cell:
    def cell(ui: UiState, width: int) -> Line:
        number = int(figure_of(ui, figure))
        return _number(fmt.count(number), width, style if number else "dim")

    return cell


def figure_of(ui: UiState, figure: Figure) -> float:
    """Returns a figure of an engine; 0 if it is not known, or no number."""
    value = None if ui.summary is None else figure(ui.summary)
    return value if value is not None and math.isfinite(value) else 0.0


def _kv_use(ui: UiState) -> float | None:
    return None if ui.summary is None else kv_use(ui.summary, ui.summary)


def _rate(figure: Figure) -> Cell:
    """Returns the cell of a rate; it is unknown for an engine that has stopped or is lost."""

    def cell(ui: UiState, width: int) -> Line:
        rate = None if ui.summary is None or _is_over(ui) else figure(ui.summary)
        return _number(fmt.UNKNOWN if rate is None else fmt.rate(rate), width)

    return cell


def _preempted(ui: UiState, width: int) -> Line:
    number = None if ui.summary is None else ui.summary.num_preemptions
    return _number(fmt.UNKNOWN if number is None else fmt.count(number), width)


def _step(ui: UiState, width: int) -> Line:
    step = -1 if ui.summary is None else ui.summary.step
    return _number(fmt.count(step) if step >= 0 else fmt.UNKNOWN, width)


def _output_history(ui: UiState, width: int) -> Line:
    values = ui.step_series.sums_by_second("generated", ui.newest.time, width)
    if ui.summaries:  # the steps are not followed
        values = [own.generated_rate or 0.0 for own in ui.summaries][-width:]
    return ((sparkline(values, width).rjust(width), "running"),)


def _kv_history(ui: UiState, width: int) -> Line:
    values = ui.step_series.gauge_by_second("used", ui.newest.time, width)
    if ui.summaries:
        values = [float(own.num_used_blocks or 0) for own in ui.summaries][-width:]
    top = float(ui.summary.num_gpu_blocks) if ui.summary else None
    return graded_spark(sparkline(values, width, top).rjust(width), KV_RAMP)


def _latency(figure: Figure) -> Cell:
    def cell(ui: UiState, width: int) -> Line:
        value = None if ui.summary is None else figure(ui.summary)
        return _number(fmt.seconds(math.nan if value is None else value), width)

    return cell


def _oldest(ui: UiState, width: int) -> Line:
    wait = figure_of(ui, lambda own: own.oldest_wait)
    return _number(fmt.seconds(wait) if wait else fmt.UNKNOWN, width, "waiting" if wait else "dim")


def _limit(ui: UiState, width: int) -> Line:
    if ui.summary is None:
        return ((fmt.UNKNOWN, "dim"),)
    texts = forms(ui.summary.limit)
    text = next((text for text in texts if text_width(text) <= width), texts[-1])
    return ((safe_line(text), "waiting" if ui.summary.is_limited else "dim"),)


def _need(ui: UiState) -> float:
    """Returns how much an engine needs a person: by the doubled seconds of its oldest wait.

    Finer steps would move rows each second. A lost engine comes after those whose requests wait
    for seconds, and before all others.
    """
    if ui.source.connection.state is ConnectionState.LOST:
        return 0.5
    if _is_over(ui):
        return 0.0
    wait = figure_of(ui, lambda own: own.oldest_wait)
    return math.floor(math.log2(min(max(wait, 1.0), 1e9)))


def outlying(engines: Sequence[UiState]) -> list[set[str]]:
    """Returns for each engine the keys of the figures that are far above those of its peers.

    The peers are the other live engines of its group: three or more engines tell which is odd.
    """
    found: list[set[str]] = [set() for _ in engines]
    by_group: dict[tuple[str, str], dict[int, dict[str, float]]] = {}
    for number, ui in enumerate(engines):
        if ui.summary is not None and ui.source.connection.state is ConnectionState.LIVE:
            own = {key: figure_of(ui, figure) for key, (figure, _) in _COMPARED.items()}
            by_group.setdefault(group_of(ui.summary), {})[number] = own
    for peers in by_group.values():
        for key, (_, least) in _COMPARED.items() if len(peers) >= _LEAST_PEERS else ():
            usual = statistics.median(own[key] for own in peers.values())
            for number, own in peers.items():
                if own[key] >= max(_OUTLYING * usual, least):
                    found[number].add(key)
    return found


_OUTLYING = 3.0
"""The multiple of the median from which on a figure is far above it."""
_LEAST_PEERS = 3
_COMPARED: dict[str, tuple[Figure, float]] = {
    "oldest": (lambda own: own.oldest_wait, 1.0),
    "ttft": (lambda own: own.ttft_p99, 0.5),
    "itl": (lambda own: own.itl_p99, 0.1),
}
"""The figures that are compared with those of peers, and the least seconds that stand out."""

Order: TypeAlias = Callable[[UiState], float]
"""Returns the figure that engines are sorted by, the largest first."""

ORDERS: dict[str, Order | None] = {
    "by the oldest wait": _need,
    "as given on the command line": None,
    "by waiting sequences": lambda ui: figure_of(ui, lambda own: own.num_waiting),
    "by KV use": lambda ui: _kv_use(ui) or 0.0,
    "by output tokens per second": lambda ui: figure_of(ui, lambda own: own.generated_rate),
    "by TTFT p99": lambda ui: figure_of(ui, lambda own: own.ttft_p99),
    "by ITL p99": lambda ui: figure_of(ui, lambda own: own.itl_p99),
    "by preemptions": lambda ui: figure_of(ui, lambda own: own.num_preemptions),
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
        cell=_count(lambda own: own.num_running, "running"),
    ),
    EngineColumn(
        key="waiting",
        title="Wait",
        help="waiting sequences",
        width=5,
        priority=0,
        cell=_count(lambda own: own.num_waiting, "waiting"),
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
        cell=_rate(lambda own: own.generated_rate),
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
        cell=_latency(lambda own: own.ttft_p50),
    ),
    EngineColumn(
        key="ttft",
        title="TTFT p99",
        help="their 99th percentile",
        width=8,
        priority=3,
        cell=_latency(lambda own: own.ttft_p99),
    ),
    EngineColumn(
        key="itl50",
        title="ITL p50",
        help="median of the times between tokens in the last minute",
        width=7,
        priority=8,
        cell=_latency(lambda own: own.itl_p50),
    ),
    EngineColumn(
        key="itl",
        title="ITL p99",
        help="their 99th percentile",
        width=7,
        priority=7,
        cell=_latency(lambda own: own.itl_p99),
    ),
    EngineColumn(
        key="in",
        title="In tok/s",
        help="prompt tokens computed in the last whole second",
        width=9,
        priority=4,
        cell=_rate(lambda own: own.prefill_rate),
    ),
    EngineColumn(
        key="steps",
        title="Steps/s",
        help="steps in the last whole second",
        width=7,
        priority=5,
        cell=_rate(lambda own: own.step_rate),
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
        cell=lambda ui, width: ((shortened(ui.source.connection.endpoint, width), "dim"),),
    ),
)
