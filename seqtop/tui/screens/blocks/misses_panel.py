"""The misses of the prefix cache: causes over time, the curve of larger pools, and admissions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.message import Message

from seqtop.state.miss_causes import MISS_LABELS
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.tui.rendering.bars import row
from seqtop.tui.rendering.charts import area_chart
from seqtop.tui.rendering.list_view import ListView
from seqtop.tui.rendering.style import PLAIN, Line, fitted, plain
from seqtop.tui.rendering.wrapped_text import wrapped
from seqtop.tui.ui_state import UiState
from seqtop.wire.messages import MissCause

if TYPE_CHECKING:
    from seqtop.misses.cache_misses import (
        BackgroundMisses,
        CacheMisses,
        CurvePoint,
        Lookup,
        Totals,
    )

_STYLES: dict[MissCause, str] = {
    "new_tokens": "computed",
    "evicted": "preempted",
    "not_stored": "waiting",
    "extra_keys": "waiting",
    "broken_prefix": "waiting",
    "partial_block": "dim",
    "not_cacheable": "dim",
    "unknown": "dim",
}
_CAUSE_WIDTH = 22
_MISSED = "missed tokens"
_SHOWN_PERCENT = (10, 20, 50, 100)
"""The sizes whose figures are beside the curve."""
_AXIS_TITLE = "blocks missed, by the size of the pool"
_LEGEND_WIDTH = 42
"""The cells of these figures."""


class Admissions(ListView):
    """The newest admissions with misses up to the moment on display, the newest first."""

    class Moved(Message):
        """The cursor is on another admission."""

    _ui: UiState

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui)
        self._lookups: list[Lookup] = []

    @property
    def num_rows(self) -> int:
        return len(self._lookups)

    @property
    def cursor_row(self) -> int | None:
        number = self._ui.misses.selected
        if number is None or not self._lookups:
            return None
        index = self._index(number)
        return index if index < len(self._lookups) else None

    @property
    def selected(self) -> Lookup | None:
        """The admission that the cursor is on."""
        index = self.cursor_row
        return None if index is None else self._lookups[index]

    def show(self, lookups: list[Lookup]) -> None:
        """Shows admissions. Called under the lock of `ui`."""
        was_first = self.cursor_row in (None, 0)
        self._lookups = lookups
        self.set_height(len(lookups))
        if lookups:  # the cursor stays on its admission, or on the newest one
            at = 0 if was_first else self.cursor_row or 0
            self._ui.misses.selected = lookups[at].number
        self.refresh_changed()

    def page(self, start: int, stop: int) -> Sequence[int]:
        return [lookup.number for lookup in self._lookups[max(start, 0) : max(stop, 0)]]

    def line(self, key: int) -> Line:
        return _admission(self._lookups[self._index(key)], self.text_width - 1)

    def is_selected(self, key: int) -> bool:
        return key == self._ui.misses.selected

    def select(self, key: int) -> None:
        with self._ui.lock:
            self._ui.misses.selected = key
            if (index := self.cursor_row) is not None:
                self.reveal(index)
            self.refresh_changed()
        self.post_message(self.Moved())

    def _index(self, number: int) -> int:
        """Returns the index of an admission, or of the one before it."""
        index = bisect_right(self._lookups, -number, key=lambda lookup: -lookup.number)
        return max(index - 1, 0)


def titles(width: int) -> Line:
    """Returns the titles of the columns."""
    text = f"{'step':>8}  {_MISSED}  {'request':<16}  cause"
    return fitted(((f" {text}", "dim"),), width)


def _admission(lookup: Lookup, width: int) -> Line:
    from seqtop.misses.report import describe_miss

    cause = lookup.main_cause
    parts = [
        describe_miss(miss, reused_after)
        for miss, reused_after in zip(lookup.misses, lookup.reused_after, strict=True)
        if miss.cause == cause
    ]
    return fitted(
        (
            (f"{fmt.count(lookup.step):>8}  ", PLAIN),
            (f"{fmt.count(lookup.num_missed_tokens):>{len(_MISSED)}}  ", PLAIN),
            *fitted(((safe_line(lookup.request_id), "strong"),), 16),
            (f"  {safe_line('; '.join(parts))}", _STYLES[cause] if cause is not None else PLAIN),
        ),
        width,
    )


def about(lookup: Lookup | None, width: int) -> list[Line]:
    """Returns sentences on one admission."""
    if lookup is None:
        return []
    from seqtop.misses.report import describe

    text = safe_line(" ".join(describe(lookup, with_text=True)))
    name = safe_line(lookup.request_id)
    (first, *others) = wrapped(f"{name}: {text}", PLAIN, width)
    cut = len(name)
    head = plain(first)
    return [((head[:cut], "title"), (head[cut:], PLAIN)), *others]


def summary(
    misses: BackgroundMisses, totals: Totals, position: int, *, width: int, height: int
) -> list[Line]:
    """Returns the totals, a line with a chart over time for each cause, and the curve.

    Args:
        misses: The misses.
        totals: The sums up to the moment on display.
        position: That moment, as a position in the history.
        width: The width in cells.
        height: The most lines.
    """
    lines = [_totals(misses, totals, width)]
    if problem := misses.replay.problem:
        lines += wrapped(safe_line(f"Reading the history: {problem}."), "alert", width)
    causes = _causes(misses, totals, position, width)
    room = height - len(lines)
    curve_height = max(room - 2 - min(len(causes), room - 5), 3)
    lines += causes[: max(room - curve_height - 1, 1)]
    if misses.reason:
        lines += wrapped(f"No curve: {safe_line(misses.reason)}", "dim", width)
    elif totals.num_missed_first:
        lines += _curve(misses, totals, width, curve_height)
    return lines[:height]


def _totals(misses: BackgroundMisses, totals: Totals, width: int) -> Line:
    is_behind = misses.replay.is_behind
    if not totals.num_lookups:
        text = "reading …" if is_behind else "No request has been admitted so far."
        return fitted(((text, "dim"),), width)
    items: list[tuple[int, Line]] = [(0, (("Prefix cache", "title"),))]
    if totals.num_blocks:
        found = fmt.percent(totals.num_hits, totals.num_blocks)
        items += [
            (0, ((found, "strong"), (f" of {fmt.count(totals.num_blocks)} blocks found", "dim"))),
            (0, ((fmt.count(totals.num_missed), "strong"), (" blocks missed", "dim"))),
        ]
    items.append((1, ((fmt.count(totals.num_lookups), "strong"), (" admissions", "dim"))))
    if totals.num_again:
        again = fmt.count(totals.num_again)
        items.append((1, ((again, "strong"), (" blocks missed after preemptions", "dim"))))
    if totals.num_blocks:
        items.append((2, ((f"only full blocks, of {misses.block_size} tokens", "dim"),)))
    if is_behind:
        items.append((0, (("reading …", "dim"),)))  # without it, the figures would be wrong
    return row(items, width, gap=3)


def _causes(misses: CacheMisses, totals: Totals, position: int, width: int) -> list[Line]:
    """Returns a line for each cause, the most tokens first, with its tokens over time."""
    from seqtop.misses.report import ranked_causes

    span = misses.span(position)
    room = max(width - _CAUSE_WIDTH - len(_MISSED) - 19, 0)
    if span is None:
        return []
    start, end = span
    length = (end - start) / (2 * room) if room else 0.0
    over_time = [
        misses.tokens_between(
            start + length * column if column else -1.0, start + length * (column + 1)
        )
        for column in range(2 * room)
    ]
    top = max((sum(tokens.values()) for tokens in over_time), default=0)
    lines: list[Line] = []
    everything = sum(totals.tokens.values())
    for cause, tokens in ranked_causes(totals.tokens):
        chart = area_chart([part.get(cause, 0) for part in over_time], 1, top) if room else [""]
        lines.append(
            (
                (f"{MISS_LABELS[cause]:<{_CAUSE_WIDTH}}", _STYLES[cause]),
                (f"{fmt.count(tokens):>7}", "strong"),
                (f" {_MISSED} {fmt.percent(tokens, everything):>6}  ", "dim"),
                (chart[0], _STYLES[cause]),
            )
        )
    return lines


def _curve(misses: CacheMisses, totals: Totals, width: int, height: int) -> list[Line]:
    """Returns the misses of larger pools as a chart, with figures at its right and an axis."""
    points = misses.curve(totals)
    missed = totals.num_missed_first
    legend = savings(points, missed)
    room = max(width - _LEGEND_WIDTH - 1, 10)
    columns = 2 * room
    values: list[float | None] = []
    for column in range(columns):
        percent = points[-1].percent * column / max(columns - 1, 1)
        after = next(at for at, point in enumerate(points) if point.percent >= percent)
        last, following = points[max(after - 1, 0)], points[after]
        way = (percent - last.percent) / max(following.percent - last.percent, 1)
        change = following.num_missed_blocks - last.num_missed_blocks
        values.append(last.num_missed_blocks + way * change)
    chart = area_chart(values, height, missed)
    lines: list[Line] = [
        ((line, "running"), (f" {legend[at] if at < len(legend) else '':<{_LEGEND_WIDTH}}", PLAIN))
        for at, line in enumerate(chart)
    ]
    ends = f"{points[0].num_gpu_blocks:,} blocks", f"{points[-1].num_gpu_blocks:,}"
    space = max(room - len(ends[0]) - len(ends[1]), 1)
    title = _AXIS_TITLE if len(_AXIS_TITLE) + 2 <= space else ""
    lines.append(((f"{ends[0]}{title:^{space}}{ends[1]}", "dim"), (_note(totals), "dim")))
    return [fitted(line, width) for line in lines]


def savings(points: Sequence[CurvePoint], missed: int) -> list[str]:
    """Returns a line for each larger pool that has fewer misses than the one before it."""
    lines, least = [], missed
    shown = [point for point in points if point.percent in _SHOWN_PERCENT]
    for point in shown:
        if point.num_missed_blocks < least:
            least = point.num_missed_blocks
            share = fmt.percent(missed - least, missed)
            lines.append(f"{f'+{point.percent}% blocks':>13} {share:>6} fewer blocks missed")
    if shown and least == shown[-2].num_missed_blocks:
        lines.append(
            f"{'larger pools':>13}    as many" if lines else " a larger pool misses as many"
        )
    return lines


def _note(totals: Totals) -> str:
    new = fmt.percent(totals.num_new, totals.num_missed_first)
    return f" {new:>6} of {fmt.count(totals.num_missed_first)} blocks never stored before"
