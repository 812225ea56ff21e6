"""Charts as inline SVG. Colours come from the page's style sheet, by class.

All charts are as wide as each other, and those over time have one axis. Lengths are SVG units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import NamedTuple

from seqtop.text import format as fmt

WIDTH, LEFT, RIGHT = 720, 62, 8
"""The width of a chart, of the labels left of it, and of the margin right of it."""
PLOT = WIDTH - LEFT - RIGHT
NUM_BINS = 32
_TOP, _AXIS = 8, 20
_STEPS = (1, 2, 5)


class Layer(NamedTuple):
    """One series of a chart."""

    name: str
    style: str
    """The class that gives its colour."""
    values: Sequence[float | None]
    """A value for each interval; `None` where nothing is recorded."""


class GanttBar(NamedTuple):
    """A phase of a request. Times are seconds on the axis of the chart."""

    style: str
    start: float
    end: float


class GanttRow(NamedTuple):
    """A request in the Gantt chart."""

    label: str
    title: str
    """The text that a pointer over the row shows."""
    bars: list[GanttBar]


def legend(layers: Sequence[tuple[str, str]]) -> str:
    """Returns a line with the name and the colour of each layer, given as names and classes."""
    items = (
        f'<span class="key"><i class="{style}"></i>{escape(name)}</span>' for name, style in layers
    )
    return f'<p class="legend">{"".join(items)}</p>'


def stacked(
    layers: Sequence[Layer],
    top: float,
    seconds: float,
    label: str,
    form: Callable[[float | None], str],
    height: int = 110,
) -> str:
    """Returns a chart over time in which the layers lie on each other, the first one lowest.

    Args:
        layers: The layers, which have equal numbers of values.
        top: The value at the upper end.
        seconds: The length of the time axis.
        label: The description for those who do not see it.
        form: Formats the values at the ends of the scale.
        height: The height of the plot.
    """
    count = len(layers[0].values)
    lower = [0.0] * count
    shapes = []
    for layer in layers:
        upper = [bottom + (value or 0.0) for bottom, value in zip(lower, layer.values, strict=True)]
        path = "".join(
            _area(run, lower, upper, top, height, count) for run in _known_runs(layer.values)
        )
        shapes.append(f'<path class="{layer.style}" d="{path}"/>' if path else "")
        lower = upper
    scale = _scale(top, height, form)
    return _svg(height, label, scale + "".join(shapes) + _time_axis(seconds, height))


def histogram(
    values: Sequence[float],
    edges: tuple[float, float],
    marks: Sequence[tuple[str, float]],
    label: str,
    form: Callable[[float | None], str],
    height: int = 70,
) -> str:
    """Returns a histogram with bins of equal width on a logarithmic scale.

    Args:
        values: The sorted values.
        edges: The lowest and the highest value of the scale, above zero.
        marks: Names and values of vertical lines.
        label: The description for those who do not see it.
        form: Formats the values on the axis.
        height: The height of the plot.
    """
    low, high = edges
    counts = [0] * NUM_BINS
    for value in values:
        counts[min(int(_log_place(value, low, high) * NUM_BINS), NUM_BINS - 1)] += 1
    top = max(counts) or 1
    width = PLOT / NUM_BINS
    bars = "".join(
        f"M{_n(LEFT + number * width + 1)} {_TOP + height}v{_n(-height * count / top)}"
        f"h{_n(width - 2)}V{_TOP + height}z"
        for number, count in enumerate(counts)
        if count
    )
    parts = [_scale(top, height, fmt.count), f'<path class="bar" d="{bars}"/>']
    for name, value in marks:
        x = _n(LEFT + _log_place(value, low, high) * PLOT)
        title = f"<title>{escape(name)}: {escape(form(value))}</title>"
        parts.append(f'<path class="mark" d="M{x} {_TOP}V{_TOP + height}">{title}</path>')
    parts += [
        _tick(LEFT + _log_place(value, low, high) * PLOT, height, form(value))
        for value in _log_ticks(low, high)
    ]
    return _svg(height, label, "".join(parts))


def gantt(rows: Sequence[GanttRow], seconds: float, row_height: int, label: str) -> str:
    """Returns a Gantt chart with a row for each request, the first one at the top."""
    height = max(len(rows) * row_height, row_height)
    bar_height = max(row_height - 2, row_height * 0.75)
    parts = []
    for number, row in enumerate(rows):
        y = _TOP + number * row_height
        paths: dict[str, str] = {}
        for style, start, end in row.bars:
            x = LEFT + PLOT * start / seconds if seconds > 0 else LEFT
            width = max(PLOT * (end - start) / seconds, 0.3) if seconds > 0 else 0.3
            box = f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(bar_height)}h{_n(-width)}z"
            paths[style] = paths.get(style, "") + box
        shapes = "".join(f'<path class="{style}" d="{path}"/>' for style, path in paths.items())
        name = ""
        if row_height >= 11:  # a label fits
            shown = row.label if len(row.label) <= 10 else f"{row.label[:9]}…"
            name = (
                f'<text class="end" x="{LEFT - 6}" y="{y + row_height - 3}">{escape(shown)}</text>'
            )
        parts.append(f"<g><title>{escape(row.title)}</title>{name}{shapes}</g>")
    return _svg(height, label, "".join(parts) + _time_axis(seconds, height))


def share_bar(share: float, style: str) -> str:
    """Returns a horizontal bar that is filled to `share`, from 0 to 1."""
    return (
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" width="100" height="8"/>'
        f'<rect class="{style}" width="{_n(100 * min(max(share, 0.0), 1.0))}" height="8"/></svg>'
    )


def round_up(value: float) -> float:
    """Returns the next 1, 1.5, 2, 3, 5 or 7 times a power of ten that is not below `value`."""
    if not 0 < value < math.inf:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        (step * power for step in (1, 1.5, 2, 3, 5, 7) if step * power >= value), 10 * power
    )


def _area(
    run: range, lower: list[float], upper: list[float], top: float, height: int, count: int
) -> str:
    """Returns the path of a layer in neighbouring intervals, in steps."""

    def y(value: float) -> str:
        return _n(_TOP + height * (1 - min(max(value / top, 0.0), 1.0)))

    def x(number: int) -> str:
        return _n(LEFT + PLOT * number / count)

    if all(lower[number] == upper[number] for number in run):
        return ""
    there = "".join(f"V{y(upper[number])}H{x(number + 1)}" for number in run)
    back = "".join(f"V{y(lower[number])}H{x(number)}" for number in reversed(run))
    return f"M{x(run[0])} {y(lower[run[0]])}{there}{back}z"


def _known_runs(values: Sequence[float | None]) -> Iterator[range]:
    """Yields the longest ranges of indexes whose values are known."""
    start = None
    for number, value in enumerate([*values, None]):
        if value is not None and start is None:
            start = number
        elif value is None and start is not None:
            yield range(start, number)
            start = None


def _scale(top: float, height: int, form: Callable[[float | None], str]) -> str:
    """Returns the lines at the ends and in the middle of a vertical scale, and its labels."""
    middle, bottom = _TOP + height / 2, _TOP + height
    return (
        f'<path class="grid" d="M{LEFT} {_TOP}h{PLOT}M{LEFT} {_n(middle)}h{PLOT}'
        f'M{LEFT} {bottom}h{PLOT}"/>'
        f'<text class="end" x="{LEFT - 6}" y="{_TOP + 4}">{escape(form(top))}</text>'
        f'<text class="end" x="{LEFT - 6}" y="{bottom}">0</text>'
    )


def _time_axis(seconds: float, height: int) -> str:
    if not 0 < seconds < math.inf:
        return ""
    power = 10.0 ** math.floor(math.log10(seconds / 5))
    step = next((n * power for n in _STEPS if n * power >= seconds / 8), 10 * power)
    ticks = (number * step for number in range(math.floor(seconds / step) + 1))
    return "".join(
        _tick(LEFT + PLOT * time / seconds, height, fmt.seconds(time) if time else "0")
        for time in ticks
    )


def _tick(x: float, height: int, text: str) -> str:
    y = _TOP + height
    anchor = "end" if x > WIDTH - 30 else "start" if x < LEFT + 10 else "middle"
    return (
        f'<path class="grid" d="M{_n(x)} {y}v4"/>'
        f'<text class="{anchor}" x="{_n(x)}" y="{y + 15}">{escape(text)}</text>'
    )


def _log_place(value: float, low: float, high: float) -> float:
    """Returns the place of a value on a logarithmic scale, from 0 to 1."""
    if value <= low or high <= low:
        return 0.0
    return min(math.log(value / low) / math.log(high / low), 1.0)


def _log_ticks(low: float, high: float) -> list[float]:
    """Returns at most eight round values on a logarithmic scale."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in (_STEPS, (1, 3), (1,)):
        ticks = [
            step * 10.0**power
            for power in exponents
            for step in steps
            if low <= step * 10.0**power <= high
        ]
        if len(ticks) <= 8:
            return ticks
    return ticks[:: math.ceil(len(ticks) / 8)]


def _svg(height: float, label: str, content: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {_n(height + _TOP + _AXIS)}" role="img"'
        f' aria-label="{escape(label)}">{content}</svg>'
    )


def _n(number: float) -> str:
    """Formats a coordinate with one decimal, as short as possible."""
    text = f"{number:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
