"""Bars and the windows they are drawn in: every cell shows what filled it."""

import math

import pytest

from seqtop.sequence import RequestMetrics
from seqtop.state import RequestState, Span
from seqtop.tui.rendering import time_axis, timeline_bars
from seqtop.tui.rendering.style import plain
from seqtop.tui.rendering.time_axis import TimeWindow
from seqtop.tui.rendering.timeline_bars import BREAKS, KINDS
from seqtop.tui.rendering.viewport import Extent, Mode, Viewport

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
    assert drawn(life) == " ░░█▆▆↺▒█▆✓ "
    assert drawn(life, cell=2.0, width=6) == "░░▆↺█✓"
    assert drawn(request(Span("queued", START + 9, None))) == "         ░  "
    swapped = request(Span("decode", START, START + 2), Span("swapped", START + 2, None))
    assert drawn(swapped, now=START + 5) == "▆▆⇄▚▚       "


def test_an_end_stands_behind_the_bar_and_within_the_line() -> None:
    life = request(Span("decode", START, START + 11.5), finished=START + 11.5)
    assert drawn(life) == "▆" * 11 + "✓"
    assert drawn(life, width=8) == "▆" * 8


def test_a_mark_does_not_hide_the_signs_that_are_kept() -> None:
    line = (("▆", "running"), ("↺", "preempted"))
    marks = [timeline_bars.marked(line, column, ("│", "accent"), "↺") for column in (0, 1, None)]
    assert [plain(marked) for marked in marks] == ["│↺", "▆↺", "▆↺"]
    assert marks[1][1] == ("↺", "marked")


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 1e300])
def test_times_that_cannot_be_are_drawn_all_the_same(odd: float) -> None:
    for span in (Span("queued", odd, odd), Span("decode", START, odd), Span("queued", odd, None)):
        assert len(drawn(request(span, finished=odd))) == 12
    viewport = Viewport()
    for mode in Mode:
        viewport.mode = mode
        window = viewport.window(Extent(odd, START, odd, ends=False), 40)
        assert math.isfinite(window.start)
        assert window.cell > 0
        time_axis.ticks(window)


class Counted(list[Span]):
    """Spans that count how often one is looked at."""

    looks = 0

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        spans = super().__getitem__(index)
        Counted.looks += len(spans) if isinstance(index, slice) else 1
        return spans


@pytest.fixture(scope="module")
def spans() -> Counted:
    return Counted(
        Span("prefill" if index % 2 else "preempted", START + index, START + index + 1)
        for index in range(100_000)
    )


@pytest.mark.parametrize(("start", "cell"), [(0.0, 1000.0), (50_000.0, 0.1), (10.0, 1.0)])
def test_a_hundred_thousand_spans_cost_what_is_in_view(
    spans: Counted, start: float, cell: float
) -> None:
    life = request()
    life.spans = spans
    Counted.looks = 0
    shown = plain(timeline_bars.bar(life, TimeWindow(START + start, cell, 100), START + 1e5, END))
    assert shown.strip()
    assert set(shown) <= {glyph for glyph, _ in (*KINDS.values(), *BREAKS.values())}
    # Of 100,000: those in view or some in each cell, and what bisections look at.
    assert Counted.looks < 12_000
