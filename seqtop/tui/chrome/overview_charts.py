"""The charts of the overview: throughput, sequences, KV cache, preemptions, and steps' time.

All charts have the same time axis. Complete columns are computed once, so a frame computes the
newest column only.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from textual.message import Message

from seqtop.history.step_series import Interval, StepSeries
from seqtop.state import not_available
from seqtop.state.step_costs import TIME_PARTS
from seqtop.state.wait_causes import CAUSES
from seqtop.text import format as fmt
from seqtop.tui import seek
from seqtop.tui.rendering.bars import KV_RAMP, ramp, row
from seqtop.tui.rendering.charts import (
    DOTS,
    TIME_SIGNS,
    area_chart,
    column_heights,
    part_name,
    round_top,
    stacked_chart,
)
from seqtop.tui.rendering.line_view import DraggableView
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted, line_width, merged
from seqtop.tui.rendering.time_axis import TimeWindow, countable, labels, ticks
from seqtop.tui.rendering.timeline_bars import marked
from seqtop.tui.rendering.viewport import Extent, Viewport
from seqtop.tui.rendering.wrapped_text import centred
from seqtop.tui.ui_state import UiState

CURSOR: StyledText = ("│", "accent")
"""The mark of the moment on display, unless that is the newest."""
_NO_STEPS = "No steps yet: the charts begin with the first one."
_GUTTER, _WIDE_GUTTER = 15, 21
_WIDE = 110
_RECENT = 1.0
"""Seconds before the cursor over which the rates in the gutter are averaged, at least."""
_MAX_HEIGHT = 30
_MAX_CACHED = 4_000
_AXIS_LINES = 2
_LEAST_SHARE = 0.005
"""The share of the time below which a part may be left out of the legend."""
_STEPS_PER_COLUMN = 2
"""The steps of an average, at least: a shorter time has one step, or none."""
_ALMOST = 0.999
"""The end of a column, as a share of its length: still in it, not in the next one."""

_PARTS = re.compile(" +|[^ ]+").findall
"""Divides a line of a chart into its blank parts and the others."""
RAMPS = {
    "running": ("running-low", "running-mid", "running"),
    "prefill": ("prefill-low", "prefill-mid", "prefill"),
    "waiting": ("waiting-low", "waiting", "preempted"),
}
"""By the style of a figure, those of its chart, from the lowest load to the highest."""
CACHED_SIGN = "⡪"

Values = Sequence[Interval | None]
"""The figures of each column; `None` where nothing is recorded."""


class Columns(enum.Enum):
    """The columns of a chart."""

    HALF = "half"
    """Two in each cell. Their figures are averages over two steps at least."""
    WHOLE = "whole"
    """One in each cell, with averages over two steps at least."""
    EXACT = "exact"
    """One in each cell, with exactly what happened in its time."""


class Chart(NamedTuple):
    """A chart of the overview."""

    title: str
    weight: int
    """The part of the height that it takes, in relation to others; 0 for a chart of one line."""
    draw: Callable[[Values, int, UiState], list[Line]]
    """Returns the lines for the columns and a height."""
    figure: Callable[[Interval, UiState], Line]
    """Returns the figure at the cursor."""
    top: Callable[[Values, UiState], str]
    """Returns the end of the scale."""
    columns: Columns = Columns.HALF
    """The columns that it draws."""
    signs: str = ""
    """Its signs that the cursor does not hide."""
    causes: frozenset[str] = frozenset()
    """The causes of `seqtop.state.verdict` that it shows: it is larger while one of them limits."""


class SharedAxis(Protocol):
    """Another view of the screen, below whose axis the charts are drawn."""

    @property
    def window(self) -> TimeWindow: ...

    @property
    def bar_column(self) -> int:
        """The column of the screen in which the window begins."""
        ...


class Charts(DraggableView, can_focus=True, inherit_bindings=False):
    """Charts on one time axis, with a cursor at the moment on display.

    Args:
        ui: The display.
        viewport: The time to show.
        charts: The charts from top to bottom.
        has_axis: Whether the time axis and a legend are below the charts.
        shared: The view whose axis the charts have; `None` for one of their own.
    """

    class TimeChosen(Message):
        """The user has chosen a time with the mouse, in epoch seconds."""

        def __init__(self, time: float) -> None:
            super().__init__()
            self.time = time

    def __init__(
        self,
        ui: UiState,
        viewport: Viewport,
        charts: Sequence[Chart],
        *,
        id: str,  # noqa: A002 (Textual's own name)
        has_axis: bool = True,
        shared: SharedAxis | None = None,
    ) -> None:
        super().__init__(id=id)
        self._shared = shared
        self._ui = ui
        self._viewport = viewport
        self._charts = charts
        self._has_axis = has_axis
        self._window = TimeWindow(0.0, 1.0, 1)
        self._gutter = _GUTTER
        self._cached: dict[Columns, dict[int, Interval]] = {kind: {} for kind in Columns}
        """Figures of complete columns, by their number since the epoch."""
        self._cached_for = (0.0, 0.0)
        """The seconds of a cell and of an average for which figures are cached."""
        self._average = 0.0
        """The seconds that figures are averages over, at least."""
        self._shown_at = math.nan
        self._was_held = False

    @property
    def window(self) -> TimeWindow:
        """The window of time of the last frame."""
        return self._window

    @property
    def extent(self) -> Extent:
        """The recorded time."""
        return recorded_time(self._ui)

    def show_display(self, ui: UiState) -> None:
        """Draws another display from now on."""
        if ui is not self._ui:
            self._ui = ui
            self._clear()
        with ui.lock:
            self.update()

    def update(self) -> None:
        """Draws the charts. Called under the lock of the display."""
        series = self._ui.step_series
        if not self.size or not self.display:
            return
        width, height = self.size.width - 2, self.size.height
        gutter = _WIDE_GUTTER if width >= _WIDE else _GUTTER
        if not len(series) or width <= gutter + 4:
            self.set_lines(centred(_NO_STEPS, self.size.width, height))
            return
        extent = self.extent
        held = self._ui.time_travel.has_position
        if self._shared is not None:
            gutter, self._window = self._shared.bar_column - 1, self._shared.window
        else:
            if held and extent.now != self._shown_at:
                self._viewport.reveal(extent, width - gutter)
            elif self._was_held and not held:
                self._viewport.release()
            self._shown_at, self._was_held = extent.now, held
            self._window = self._viewport.window(extent, width - gutter)
        self._gutter, window = gutter, self._window
        self._prepare(series)
        columns = {
            kind: self._values(series, extent, kind)
            for kind in {chart.columns for chart in self._charts}
        }
        cursor = window.column(min(extent.now, window.end - window.cell / 2)) if held else None
        # Up to a second, the same second as in the header.
        here = series.last_second(extent.now) if window.cell <= _RECENT else None
        here = here or series.before(extent.now, max(window.cell, _RECENT))
        lines: list[Line] = []
        room = height - (_AXIS_LINES + 1 if self._has_axis else 0)
        for chart, lines_of_chart in zip(self._charts, self._heights(room), strict=True):
            if lines_of_chart:
                values = columns[chart.columns]
                lines += self._chart_lines(chart, lines_of_chart, values, here, gutter, cursor)
        if self._has_axis:
            lines += self._axis(gutter, cursor)
            lines.append(((" ", PLAIN), *time_legend(here, width)))
        self.set_lines(lines)

    def on_resize(self) -> None:
        with self._ui.lock:
            self.update()

    def drag_to(self, x: int) -> None:
        column = x - (self._gutter + 1)
        if 0 <= column < self._window.width:
            self.post_message(
                self.TimeChosen(self._window.start + (column + _ALMOST) * self._window.cell)
            )

    def _limits(self, chart: Chart) -> bool:
        """Returns whether a chart shows what limits the engine."""
        return self._ui.verdict.cause in chart.causes

    def _heights(self, room: int) -> list[int]:
        """Returns the height of each chart; the last ones get none if there is no room."""
        heights = [int(number < room) for number in range(len(self._charts))]
        weights = [chart.weight * (1 + self._limits(chart)) for chart in self._charts]
        for _ in range(room - len(self._charts)):
            growing = [
                (heights[number] / weights[number], number)
                for number, chart in enumerate(self._charts)
                if chart.weight and 0 < heights[number] < _MAX_HEIGHT
            ]
            if not growing:
                break
            heights[min(growing)[1]] += 1
        return heights

    def _prepare(self, series: StepSeries) -> None:
        """Chooses the length of averages, and forgets figures of other columns."""
        wanted = _STEPS_PER_COLUMN * series.step_length()
        if not self._average / 2 <= wanted <= self._average:
            self._average = 1.25 * wanted
        now = self._window.cell, max(self._average, self._window.cell / 2)
        if self._cached_for != now or len(self._cached[Columns.HALF]) > _MAX_CACHED:
            self._clear()
            self._cached_for = now

    def _clear(self) -> None:
        for cached in self._cached.values():
            cached.clear()

    def _values(self, series: StepSeries, extent: Extent, kind: Columns) -> list[Interval | None]:
        """Returns the figures of each column of the window."""
        window, cached = self._window, self._cached[kind]
        per_cell = 2 if kind is Columns.HALF else 1
        length = window.cell / per_cell
        average = length if kind is Columns.EXACT else max(length, self._average)
        leftmost = round(window.start / window.cell) * per_cell
        values: list[Interval | None] = []
        missing: dict[int, tuple[float, float]] = {}
        first, last = max(extent.first, series.start), min(series.end, extent.last)
        for column in range(window.width * per_cell):
            start = window.start + column * length
            end = start + length
            if end <= extent.first or start >= last:
                values.append(None)
            elif end > last:  # the newest column is not complete
                begin = start if kind is Columns.EXACT else last - average
                values.append(series.between(begin, last))
            else:
                values.append(cached.get(leftmost + column))
                if values[-1] is None:
                    exact = kind is Columns.EXACT
                    missing[column] = start if exact else max(end - average, min(first, start)), end
        computed = series.intervals([*missing.values()])
        for column, interval in zip(missing, computed, strict=True):
            values[column] = cached[leftmost + column] = interval
        return values

    def _chart_lines(
        self,
        chart: Chart,
        height: int,
        values: Values,
        here: Interval,
        gutter: int,
        cursor: int | None,
    ) -> Iterable[Line]:
        figure = chart.figure(here, self._ui)
        style = "waiting" if self._limits(chart) else "strong"
        notes: list[Line] = [((chart.title, style),), figure]
        if height == 1:
            words = [(f" {word}", style) for text, style in figure for word in text.split()]
            while len(words) > 1 and len(chart.title) + line_width(tuple(words)) >= gutter:
                words.pop()  # without its unit
            notes = [((chart.title, style), *words)]
        elif height > 2 and (top := chart.top(values, self._ui)):
            notes.append(((f"to {top}", "dim"),))
        for number, line in enumerate(chart.draw(values, height, self._ui)):
            note = notes[number] if number < len(notes) else ()
            shown = marked(line, cursor, CURSOR, chart.signs)
            yield ((" ", PLAIN), *fitted(note, gutter - 1), (" ", PLAIN), *shown)

    def _axis(self, gutter: int, cursor: int | None) -> list[Line]:
        window = self._window
        marks = ticks(window)
        ruler = {tick.column: ("┬", "dim") for tick in marks}
        if cursor is not None:
            ruler[cursor] = ("▲", "accent")
        line = [ruler.get(column, ("─", "track")) for column in range(window.width)]
        scale = f"{fmt.seconds(window.cell)}/column"
        return [
            ((" " * (gutter + 1), PLAIN), *merged(line)),
            (
                (" ", PLAIN),
                *fitted(((scale, "dim"),), gutter),
                (labels(marks, window.width), PLAIN),
            ),
        ]


def recorded_time(ui: UiState) -> Extent:
    """Returns the recorded time and the moment on display. Called under the lock of `ui`."""
    timeline = ui.source.history
    with timeline.lock:
        begin, end = map(countable, seek.bounds(timeline))
    # There is no time before the first event.
    now = max(countable(ui.state.time, end), begin)
    return Extent(begin, end, now, ends=ui.engine is None)


def time_legend(here: Interval, width: int) -> Line:
    """Returns the parts of the time before the cursor in percent; their sum is 100 %.

    If they do not fit, their names are short ones; then the smallest parts are left out.
    """
    shares = here.shares()
    unknown = max(1.0 - sum(shares.values()), 0.0)
    has_forward = shares["forward"] > 0
    names = {part: part_name(part, has_forward=has_forward) for part in TIME_PARTS}
    short = {part: part for part in TIME_PARTS} | ({"execute": "ex-fwd"} if has_forward else {})
    largest = sorted(TIME_PARTS, key=lambda part: -shares[part])
    line: Line = ()
    for name in (names, short):
        texts = {part: (f" {name[part]} ", "dim") for part in TIME_PARTS}
        items: list[tuple[int, Line]] = [
            (
                largest.index(part),
                (TIME_SIGNS[part], texts[part], (fmt.percent(shares[part]), PLAIN)),
            )
            for part in TIME_PARTS
        ]
        if unknown >= _LEAST_SHARE:
            items.append((0, (("unknown ", "dim"), (fmt.percent(unknown), PLAIN))))
        line = row(items, width)
        if all(texts[part] in line for part in TIME_PARTS if shares[part] >= _LEAST_SHARE):
            break
    return line


def _area_chart(
    of: Callable[[Interval], float | None], styles: Sequence[str]
) -> Callable[..., list[Line]]:
    """Returns the drawing of a figure, scaled to its largest value.

    Args:
        of: Returns the figure.
        styles: The styles of its lines, from the lowest load to the highest.
    """

    def draw(values: Values, height: int, _: UiState) -> list[Line]:
        figures = [None if interval is None else of(interval) for interval in values]
        lines = area_chart(figures, height, _top(figures))
        return [
            tuple((part, PLAIN if part[0] == " " else style) for part in _PARTS(line))
            for line, style in zip(lines, ramp(styles, height), strict=True)
        ]

    return draw


def _top_text(of: Callable[[Interval], float | None]) -> Callable[[Values, UiState], str]:
    def text(values: Values, _: UiState) -> str:
        return fmt.count(_top([None if interval is None else of(interval) for interval in values]))

    return text


def _top(figures: Iterable[float | None]) -> float:
    return round_top(max((figure for figure in figures if figure is not None), default=0.0))


def _rate(name: str) -> Callable[[Interval], float]:
    return lambda interval: interval.rate(name)


def _gauge(name: str) -> Callable[[Interval], float | None]:
    return lambda interval: interval.gauges.get(name)


def _rate_chart(title: str, name: str, style: str, weight: int, *causes: str) -> Chart:
    return Chart(
        title,
        weight,
        _area_chart(_rate(name), RAMPS[style]),
        lambda interval, _: ((f"{fmt.rate(interval.rate(name))} tok/s", style),),
        _top_text(_rate(name)),
        causes=frozenset(causes),
    )


def _gauge_chart(title: str, name: str, style: str, weight: int, *causes: str) -> Chart:
    return Chart(
        title,
        weight,
        _area_chart(_gauge(name), RAMPS[style]),
        lambda _, ui: ((fmt.count(getattr(ui.state.stats, f"num_{name}", None)), style),),
        _top_text(_gauge(name)),
        causes=frozenset(causes),
    )


def _num_blocks(ui: UiState) -> float:
    return float(ui.state.info.num_gpu_blocks) if ui.state.info else 0.0


def _draw_kv(values: Values, height: int, ui: UiState) -> list[Line]:
    """Draws used blocks from below, cached ones above them, and leaves free ones blank.

    A cell in which there are more cached than used blocks is one of cached blocks.
    """
    total = _num_blocks(ui)
    used = [interval.gauges.get("used") if interval else None for interval in values]
    both = [
        interval.gauges["used"] + interval.gauges["cached"]
        if interval and "used" in interval.gauges
        else None
        for interval in values
    ]
    used_ends, ends = (column_heights(each, height, total)[1::2] for each in (used, both))
    lines: list[Line] = []
    styles = ramp(KV_RAMP, height)
    for number, (text, style) in enumerate(
        zip(area_chart(used, height, total), styles, strict=True)
    ):
        below = (height - 1 - number) * DOTS
        pieces: list[StyledText] = []
        for glyph, used_end, end in zip(text, used_ends, ends, strict=True):
            between = max(used_end, below)
            if min(end, below + DOTS) - between > max(between - below, 1):
                pieces.append((CACHED_SIGN, "cached"))
            else:
                pieces.append((glyph, style if glyph != " " else PLAIN))
        lines.append(merged(pieces))
    return lines


def _kv_figure(_: Interval, ui: UiState) -> Line:
    if (stats := ui.state.stats) is None:
        return ((fmt.UNKNOWN, "dim"),)
    used = fmt.percent(stats.num_used_blocks, _num_blocks(ui))
    cached = not_available.count(stats.num_cached_blocks)
    return ((f"{used} ", "computed"), (f"+{cached} cached", "cached"))


def _draw_preemptions(values: Values, _: int, __: UiState) -> list[Line]:
    pieces: list[StyledText] = []
    for interval in values:
        number = round(interval.sums["preemptions"]) if interval else 0
        glyph = " " if not number else "↺" if number == 1 else str(number) if number < 10 else "+"
        pieces.append((glyph, "preempted"))
    return [merged(pieces)]


def _preemption_figure(_: Interval, ui: UiState) -> Line:
    stats = ui.state.stats
    return ((fmt.count(stats.num_preemptions if stats else None), "preempted"),)


def _draw_time(values: Values, height: int, _: UiState) -> list[Line]:
    signs = [TIME_SIGNS[part] for part in TIME_PARTS]
    nothing = [0.0] * len(TIME_PARTS)
    columns = [list(interval.shares().values()) if interval else nothing for interval in values]
    return [merged(line) for line in stacked_chart(columns, signs, height)]


def _time_figure(interval: Interval, _: UiState) -> Line:
    shares = interval.shares()
    return ((f"{fmt.percent(shares['forward'] + shares['execute'])} execute", "running"),)


_PREEMPTIONS = Chart(
    "Preempted",
    0,
    _draw_preemptions,
    _preemption_figure,
    lambda _, __: "",
    Columns.EXACT,
    "↺23456789+",
)
_KV = Chart(
    "KV blocks",
    3,
    _draw_kv,
    _kv_figure,
    lambda _, ui: fmt.count(_num_blocks(ui)),
    causes=frozenset({"no_blocks", "reserved_blocks"}),
)
_OUTPUT = _rate_chart("Output", "generated", "running", 3)
_PREFILL = _rate_chart("Prefill", "prefill", "prefill", 2, "token_budget")
_WAITING = _gauge_chart("Waiting", "waiting", "waiting", 2, *CAUSES)

ALL_CHARTS = (
    _OUTPUT,
    _PREFILL,
    _gauge_chart("Running", "running", "running", 2, "seq_limit"),
    _WAITING,
    _KV,
    _PREEMPTIONS,
    Chart(
        "Time",
        3,
        _draw_time,
        _time_figure,
        lambda _, __: "100%",
        Columns.WHOLE,
        causes=frozenset({"host", "scheduler", "empty_steps", "cuda_graph"}),
    ),
)
"""The charts of the overview screen."""
RATE_CHARTS = (_OUTPUT, _PREFILL)
"""The charts above the bars of the timeline."""
STRIP_CHARTS = (_OUTPUT, _PREFILL, _WAITING, _KV, _PREEMPTIONS)
"""The charts above the sequence table."""
