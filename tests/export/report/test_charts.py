"""The coordinates of charts, which are 650 units wide, from 62 on, and begin 8 from the top."""

import math
import re

import pytest

from seqtop.export.report import charts
from seqtop.export.report.charts import GanttBar, GanttRow, Layer
from seqtop.text import format as fmt


def paths(svg: str) -> list[tuple[str, str]]:
    """Returns the classes and the shapes of the paths but the marks of the axis."""
    found = re.findall(r'<path class="([^"]+)" d="([^"]*)"', svg)
    return [(style, shape) for style, shape in found if style != "grid"]


def texts(svg: str) -> list[tuple[str, str, str, str]]:
    """Returns the anchor, the place and the words of each text."""
    return re.findall(r'<text class="(\w+)" x="([^"]+)" y="([^"]+)">([^<]*)</text>', svg)


def test_layers_lie_on_each_other() -> None:
    """A layer has no area above the upper end, and none for what is not recorded."""
    layers = [
        Layer("one", "a", [1.0, 3.0, None, 0.0, 2.0]),
        Layer("two", "b", [1.0, 2.0, 1.0, None, None]),
        Layer("none", "c", [0.0] * 5),
    ]
    svg = charts.stacked(layers, 4.0, 10.0, "a <label>", fmt.count, height=80)
    assert svg.startswith('<svg viewBox="0 0 720 108" role="img" aria-label="a &lt;label&gt;">')
    assert paths(svg) == [
        ("a", "M62 88V68H192V28H322V88H192V88H62zM452 88V88H582V48H712V88H582V88H452z"),
        ("b", "M62 68V48H192V8H322V68H452V88H322V28H192V68H62z"),
    ]
    assert '<path class="grid" d="M62 8h650M62 48h650M62 88h650"/>' in svg
    assert '<path class="grid" d="M192 88v4"/>' in svg
    assert texts(svg) == [
        ("end", "56", "12", "4"),
        ("end", "56", "88", "0"),
        ("start", "62", "103", "0"),
        ("middle", "192", "103", "2.00 s"),
        ("middle", "322", "103", "4.00 s"),
        ("middle", "452", "103", "6.00 s"),
        ("middle", "582", "103", "8.00 s"),
        ("end", "712", "103", "10.0 s"),
    ]


@pytest.mark.parametrize(
    ("seconds", "ticks"),
    [
        (0.5, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        (8.0, [0, 1, 2, 3, 4, 5, 6, 7, 8]),
        (45.0, [0, 10, 20, 30, 40]),
        (60.0, [0, 10, 20, 30, 40, 50, 60]),
        (450.0, [0, 100, 200, 300, 400]),
        (0.0, []),
        (math.inf, []),
    ],
)
def test_ticks_of_a_time_axis(seconds: float, ticks: list[float]) -> None:
    found = texts(charts.gantt([], seconds, 10, ""))
    assert [text for *_, text in found] == [fmt.seconds(tick) if tick else "0" for tick in ticks]
    assert [float(x) for _, x, _, _ in found] == [
        pytest.approx(62 + 650 * tick / seconds, abs=0.06) for tick in ticks
    ]


def test_a_histogram_has_bins_of_equal_width_on_a_logarithmic_scale() -> None:
    """32 of them from 1 to 2^32; values beyond the ends are in the outermost ones."""
    values = [0.5, 2**0.5, 2**0.5, 2**0.5, 2**5.5, 2.0**40]
    marks = [("<median>", 2.0**16)]
    svg = charts.histogram(values, (1.0, 2.0**32), marks, "", fmt.count, height=64)
    assert paths(svg) == [
        ("bar", "M63 72v-64h18.3V72zM164.6 72v-16h18.3V72zM692.7 72v-16h18.3V72z"),
        ("mark", "M387 8V72"),
    ]
    assert "<title>&lt;median&gt;: 65,536</title>" in svg
    assert texts(svg) == [
        ("end", "56", "12", "4"),
        ("end", "56", "72", "0"),
        ("start", "62", "87", "1"),
        ("middle", "197", "87", "100"),
        ("middle", "331.9", "87", "10,000"),
        ("middle", "466.9", "87", "1.00M"),
        ("middle", "601.8", "87", "100M"),
    ]


def test_bins_begin_at_the_lowest_value() -> None:
    values, marks = [0.25, 0.25 * 2**5.5], [("middle", 0.25 * 2.0**16)]
    svg = charts.histogram(values, (0.25, 2.0**30), marks, "", fmt.count, height=64)
    assert paths(svg) == [
        ("bar", "M63 72v-64h18.3V72zM164.6 72v-64h18.3V72z"),
        ("mark", "M387 8V72"),
    ]


@pytest.mark.parametrize(
    ("high", "ticks"),
    [
        (10.0, [1, 2, 5, 10]),
        (200.0, [1, 2, 5, 10, 20, 50, 100, 200]),
        (500.0, [1, 3, 10, 30, 100, 300]),
        (1.0, [1]),
    ],
)
def test_ticks_of_a_logarithmic_axis(high: float, ticks: list[int]) -> None:
    svg = charts.histogram([], (1.0, high), [], "", fmt.count)
    assert [text for *_, text in texts(svg)] == ["1", "0", *map(str, ticks)]
    assert paths(svg) == [("bar", "")]


def test_a_gantt_chart_has_a_row_for_each_request() -> None:
    bars = [GanttBar("wait", 0.0, 2.0), GanttBar("run", 2.0, 10.0), GanttBar("wait", 10.0, 10.0)]
    rows = [GanttRow("a-name-of-16-let", "<a>", bars), GanttRow("ten-letter", "b", bars[1:2])]
    svg = charts.gantt(rows, 10.0, 12, "")
    assert svg.startswith('<svg viewBox="0 0 720 52"')
    assert paths(svg) == [
        ("wait", "M62 8h130v10h-130zM712 8h0.3v10h-0.3z"),
        ("run", "M192 8h520v10h-520z"),
        ("run", "M192 20h520v10h-520z"),
    ]
    assert texts(svg)[:2] == [("end", "56", "17", "a-name-of…"), ("end", "56", "29", "ten-letter")]
    assert "<title>&lt;a&gt;</title>" in svg
    assert len(texts(charts.gantt(rows, 0.0, 11, ""))) == 2
    small = charts.gantt(rows, 0.0, 4, "")
    assert paths(small)[1] == ("run", "M62 8h0.3v3h-0.3z")
    assert texts(small) == []
    assert charts.gantt([], 10.0, 12, "").startswith('<svg viewBox="0 0 720 40"')


@pytest.mark.parametrize(
    ("share", "width"), [(-0.5, "0"), (0.0, "0"), (0.255, "25.5"), (1.0, "100"), (3.0, "100")]
)
def test_a_bar_is_filled_to_a_share(share: float, width: str) -> None:
    assert f'<rect class="good" width="{width}" height="8"/>' in charts.share_bar(share, "good")


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.0, 1.0), (1.2, 1.5), (1.6, 2.0), (2.5, 3.0), (4.0, 5.0), (6.0, 7.0), (8.0, 10.0),
        (70.0, 70.0), (701.0, 1_000.0), (0.25, 0.3), (0.0, 1.0), (-3.0, 1.0), (math.inf, 1.0),
    ],
)  # fmt: skip
def test_a_scale_ends_at_a_round_value(value: float, rounded: float) -> None:
    assert charts.round_up(value) == pytest.approx(rounded)
