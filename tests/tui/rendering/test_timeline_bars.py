"""Bars and the windows they are drawn in: every cell shows what filled it."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.sequence import RequestMetrics
from seqtop.state import RequestState, Span
from seqtop.tui.rendering import time_axis, timeline_bars
from seqtop.tui.rendering.style import plain
from seqtop.tui.rendering.time_axis import TimeWindow
from seqtop.tui.rendering.timeline_bars import BREAKS, KINDS
from seqtop.tui.screens.timeline.viewport import Extent, Mode, Viewport

START = 1_700_000_000.0
END = ("✓", "finished")


def request(*spans: Span, finished: float | None = None) -> RequestState:
    metrics = RequestMetrics(START, START, None, None, None, finished_time=finished)
    reason = None if finished is None else "stop"
    return RequestState("req", metrics, [1], spans=list(spans), finish_reason=reason)


def drawn(of: RequestState, now: float = START + 10, cell: float = 1.0, width: int = 12) -> str:
    return plain(timeline_bars.bar(of, TimeWindow(START, cell, width), now, END))


def test_a_bar_shows_each_stretch_where_it_was() -> None:
    life = request(
        Span("queued", START + 1, START + 3),
        Span("prefill", START + 3, START + 4),
        Span("decode", START + 4, START + 6),
        Span("preempted", START + 6, START + 8),
        Span("prefill", START + 8, START + 9),
        Span("decode", START + 9, START + 10),
        finished=START + 10,
    )
    assert drawn(life) == " ░░█━━↺▒█━✓ "
    assert drawn(life, cell=2.0, width=6) == "░░━↺█✓"
    assert drawn(request(Span("queued", START + 9, None))) == "         ░  "
    swapped = request(Span("decode", START, START + 2), Span("swapped", START + 2, None))
    assert drawn(swapped, now=START + 5) == "━━⇄▚▚       "


def test_an_end_stands_behind_the_bar_and_within_the_line() -> None:
    life = request(Span("decode", START, START + 11.5), finished=START + 11.5)
    assert drawn(life) == "━" * 11 + "✓"
    assert drawn(life, width=8) == "━" * 8


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e300])
def test_times_that_cannot_be_are_drawn_all_the_same(odd: float) -> None:
    for span in (Span("queued", odd, odd), Span("decode", START, odd), Span("queued", odd, None)):
        assert len(drawn(request(span, finished=odd))) == 12
    viewport = Viewport()
    for mode in Mode:
        viewport.mode = mode
        found = viewport.window(Extent(odd, START, odd, ends=False), 40)
        assert math.isfinite(found.start)
        assert found.cell > 0
        time_axis.ticks(found)


class Counted(list[Span]):
    """Spans that count how often one is looked at."""

    looks = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        found = super().__getitem__(index)
        Counted.looks += len(found) if isinstance(index, slice) else 1
        return found


@pytest.mark.parametrize(("start", "cell"), [(0.0, 1000.0), (50_000.0, 0.1), (10.0, 1.0)])
def test_a_hundred_thousand_spans_cost_what_is_in_view(start: float, cell: float) -> None:
    spans = Counted(
        Span("prefill" if index % 2 else "preempted", START + index, START + index + 1)
        for index in range(100_000)
    )
    life = request()
    life.spans = spans
    Counted.looks = 0
    shown = plain(timeline_bars.bar(life, TimeWindow(START + start, cell, 100), START + 1e5, END))
    assert shown.strip()
    assert set(shown) <= {glyph for glyph, _ in (*KINDS.values(), *BREAKS.values())}
    # Of 100,000: those in view or some in each cell, and what bisections look at.
    assert Counted.looks < 12_000


@given(
    st.floats(1.6e9, 1.8e9),
    st.integers(-30, 50),
    st.integers(20, 300),
)
def test_ticks_are_in_sight_apart_and_in_order(start: float, zoom_level: int, width: int) -> None:
    shown = time_axis.window_from(start, zoom_level, width)
    assert shown.start <= start < shown.start + shown.cell * 1.001 + 1e-6
    found = time_axis.ticks(shown)
    columns = [tick.column for tick in found]
    assert columns == sorted(set(columns))
    assert all(0 <= column < width for column in columns)
    for left, right in pairwise(found):
        assert right.column - left.column > len(left.label)
    assert len(time_axis.labels(found, width)) == width


@given(st.floats(1e-3, 1e7), st.integers(10, 300))
def test_everything_fits_and_little_is_left_free(length: float, width: int) -> None:
    cell = time_axis.scale(time_axis.zoom_level_for(length, width))
    assert cell * width >= length * 0.999
    assert cell * width <= max(length * 1.4, 1.1e-4 * width)


EXTENT = Extent(START, START + 60, START + 60, ends=False)


def test_a_lens_fits_all_zooms_pans_and_follows() -> None:
    viewport = Viewport()
    whole = viewport.window(EXTENT, 100)
    assert whole.column(EXTENT.first) == 0
    assert whole.column(EXTENT.last) is not None
    viewport.zoom(EXTENT, 100, 1)
    closer = viewport.window(EXTENT, 100)
    assert closer.cell == pytest.approx(whole.cell / 2, rel=0.05)
    assert closer.column(EXTENT.now) is not None
    later = EXTENT._replace(now=START + 90, last=START + 90)
    assert viewport.window(later, 100).column(START + 90) is not None
    viewport.pan(later, 100, -0.5)
    back = viewport.window(later, 100)
    assert back.start < closer.start + 30
    assert viewport.window(later._replace(now=START + 200), 100) == back
    viewport.follow(later, 100)
    assert viewport.window(later, 100).column(later.now) is not None
    viewport.pan(later, 100, -0.5)
    viewport.zoom(later, 100, -1)
    assert viewport.window(later, 100).cell == pytest.approx(back.cell * 2, rel=0.05)
    viewport.pan(later, 100, -3.0)
    assert viewport.window(later, 100).column(later.now) is None
    viewport.reveal(later, 100)
    assert viewport.window(later, 100).column(later.now) is not None


def test_zooming_comes_to_an_end_at_both_ends() -> None:
    viewport = Viewport()
    for by, least, most in ((1, 1e-4, 1.1e-4), (-1, 9e5, 1.1e6)):
        for _ in range(60):
            viewport.zoom(EXTENT, 100, by)
        assert least <= viewport.window(EXTENT, 100).cell <= most


def test_an_engine_that_has_run_long_is_first_shown_of_late() -> None:
    viewport = Viewport()
    long = Extent(START, START + 9_000, START + 9_000, ends=False)
    assert viewport.window(long, 100).start > START + 8_700
    assert viewport.window(long._replace(ends=True), 100).column(START) == 0
    viewport.mode = Mode.ALL
    assert viewport.window(long, 100).column(START) == 0
