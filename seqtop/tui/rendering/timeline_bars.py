"""The lifecycle of a request as a bar on a time axis.

The cost of a bar grows with the spans in the window, up to a few spans per cell.
"""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter

from seqtop.state import RequestState, Span
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, merged
from seqtop.tui.rendering.time_axis import TimeWindow

KINDS = {
    "queued": ("░", "waiting"),
    "prefill": ("█", "prefill"),
    "decode": ("▆", "running"),
    "preempted": ("▒", "preempted"),
    "swapped": ("▚", "swapped"),
}
"""The glyph and the style of each kind of span."""
BREAKS = {"preempted": ("↺", "preempted"), "swapped": ("⇄", "swapped")}
"""The marks of the cells in which a preemption begins."""
MAX_SPANS = 1_000
"""The spans in a window that are all drawn. Of more spans, `_SAMPLES` per cell are drawn."""
_SAMPLES = 8
_START = attrgetter("start")


def bar(request: RequestState, window: TimeWindow, now: float, end: StyledText) -> Line:
    """Returns a bar whose cells show the kind of span that fills most of each.

    Args:
        request: The request.
        window: The window of time.
        now: The engine's time (epoch seconds), the end of an open span.
        end: The sign behind the bar of a finished request.
    """
    cells = _kinds(_in_view(request.spans, window), window, now)
    pieces: list[StyledText] = [KINDS.get(kind, (" ", PLAIN)) for kind in cells]
    for column, kind in _preemption_columns(request.spans, window).items():
        pieces[column] = BREAKS[kind]
    finished = request.metrics.finished_time
    if request.finish_reason is not None and finished is not None:
        at = window.column(finished)
        if at is not None:
            column = at
            if cells[column] and column + 1 < window.width:
                column += 1
            pieces[column] = end
    return merged(pieces)


def marked(line: Line, column: int | None, mark: StyledText, kept: str = "") -> Line:
    """Returns `line`, whose glyphs are all one cell wide, with `mark` at a column.

    Args:
        line: The line.
        column: The column of the mark; `None` for no mark.
        mark: The mark.
        kept: Signs that a mark would hide. They stay, in reverse video instead.
    """
    if column is None:
        return line
    pieces = [(glyph, style) for text, style in line for glyph in text]
    if column < len(pieces):
        glyph, _ = pieces[column]
        pieces[column] = (glyph, "marked") if glyph in kept else mark
    return merged(pieces)


def _in_view(spans: Sequence[Span], window: TimeWindow) -> Sequence[Span]:
    """Returns the spans in the window; of very many, a sample."""
    first = max(bisect_right(spans, window.start, key=_START) - 1, 0)
    last = bisect_left(spans, window.end, key=_START)
    if last - first <= MAX_SPANS:
        return spans[first:last]
    chosen: list[Span] = []
    low = first
    for column in range(window.width):
        border = window.start + (column + 1) * window.cell
        high = bisect_left(spans, border, lo=low, hi=last, key=_START)
        stride = max((high - low) // _SAMPLES, 1)
        chosen += spans[low:high:stride]
        low = high
    return chosen


def _kinds(spans: Sequence[Span], window: TimeWindow, now: float) -> list[str]:
    """Returns for each cell the kind that fills most of it; an empty text for an empty cell."""
    shares: list[defaultdict[str, float]] = [defaultdict(float) for _ in range(window.width)]
    for span in spans:
        left = _place(span.start, window)
        right = _place(now if span.end is None else span.end, window)
        for index in range(int(left), min(math.ceil(right), window.width)):
            shares[index][span.kind] += min(right, index + 1) - max(left, index)
    return [
        max(share.items(), key=lambda item: item[1])[0] if any(share.values()) else ""
        for share in shares
    ]


def _preemption_columns(spans: Sequence[Span], window: TimeWindow) -> dict[int, str]:
    """Returns the cells in which the request was preempted, with the kind of preemption."""
    first = bisect_left(spans, window.start, key=_START)
    last = bisect_left(spans, window.end, key=_START)
    kinds: dict[int, str] = {}
    stride = max((last - first) // MAX_SPANS, 1)
    for span in spans[first:last:stride]:
        column = window.column(span.start) if span.kind in BREAKS else None
        if column is not None:
            kinds[column] = span.kind
    return kinds


def _place(time: float, window: TimeWindow) -> float:
    """Returns the position of a time in cells from the left, clamped to the window."""
    place = (time - window.start) / window.cell
    return min(max(place, 0.0), float(window.width)) if math.isfinite(place) else 0.0
