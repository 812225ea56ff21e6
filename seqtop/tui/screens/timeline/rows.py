"""The rows of the timeline, one per request, and the time axis above them."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from textual.message import Message

from seqtop.sequence import SequenceStatus, latency
from seqtop.state import RequestState, SequenceState
from seqtop.state.fields import sequence_name, waited
from seqtop.state.ordering import SequenceView, Sort
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_text
from seqtop.tui.chrome.overview_charts import recorded_time
from seqtop.tui.rendering import timeline_bars
from seqtop.tui.rendering.bars import row
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.list_view import MARGIN
from seqtop.tui.rendering.sequence_label import GLYPHS, glyph, shortened
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted, merged, text_width
from seqtop.tui.rendering.time_axis import TimeWindow, countable, labels, ticks
from seqtop.tui.rendering.viewport import Extent, Viewport
from seqtop.tui.screens.sequence_rows import SequenceRows
from seqtop.tui.ui_state import Changes, UiState

POSITION_MARK: StyledText = ("│", "accent")
"""The mark of the position on display, unless that is the newest."""
_KEPT = "".join(sign for sign, _ in timeline_bars.BREAKS.values())
"""The signs of a bar that this mark does not hide."""
_ENDS = {"length": 1, "stop": 2, "abort": 6, "ignored": 9}
"""The status words of ended requests, with their ranks in the legend."""
_FIGURE = 7
_NAME, _LONG_NAME = 12, 20
_WIDE = 120
_MAX_LINES = 3
"""The most lines of a row, of which the last one is blank."""
_BELOW = str.maketrans({"▆": "█", "↺": "▒", "⇄": "▚"})
"""The signs of a bar on its second line: without the gap above a decode, and without marks."""
_LEAST_STEP = 3
"""The fewest cells between two steps for which steps have ticks."""


class TimelineColumns(NamedTuple):
    """The widths of the name and of the bar, in cells."""

    name: int
    bar: int


def columns(width: int) -> TimelineColumns:
    """Returns the widths of the columns in a row of `width` cells."""
    name = _LONG_NAME if width >= _WIDE else _NAME
    return TimelineColumns(name, max(width - name - 3 - 2 * (_FIGURE + 1), 1))


class TimelineRows(SequenceRows):
    """A row per sequence with its request's bar, in the order of the table or of arrival."""

    class Resized(Message):
        """The size has changed, and with it the lines of a row and the length of the bars."""

    def __init__(self, ui: UiState, viewport: Viewport) -> None:
        super().__init__(ui)
        self.by_arrival = False
        self._viewport = viewport
        self._arrivals = SequenceView()
        self._arrivals.sort = Sort("seq")
        self._window = TimeWindow(0.0, 1.0, 1)
        self._bars: dict[int, tuple[object, Line]] = {}
        self._position_column: int | None = None
        self._shown_at = math.nan
        self._was_held = False

    def on_resize(self) -> None:
        self.post_message(self.Resized())

    @property
    def view(self) -> SequenceView:
        return self._arrivals if self.by_arrival else self._ui.view

    @property
    def layout_columns(self) -> TimelineColumns:
        return columns(self.text_width - MARGIN)

    @property
    def window(self) -> TimeWindow:
        """The window of time of the last changes."""
        return self._window

    @property
    def bar_column(self) -> int:
        """The column of the screen in which bars begin."""
        return MARGIN + self.layout_columns.name + 3

    @property
    def position_column(self) -> int | None:
        """The column of the position on display; `None` if that is the newest."""
        return self._position_column

    @property
    def extent(self) -> Extent:
        """The recorded time."""
        ui, extent = self._ui, recorded_time(self._ui)
        # A position before the first arrival has no sequence: the newest state has the first one.
        heads = (next(iter(state.requests.values()), None) for state in (ui.state, ui.newest))
        arrivals = [head.metrics.arrival_time for head in heads if head is not None]
        first = countable(min(arrivals, default=extent.now), extent.first)
        return extent._replace(first=first)

    def update(self, changes: Changes) -> None:
        """Draws the rows in the present window. Called under the lock of `ui`."""
        ui, extent, width = self._ui, self.extent, self.layout_columns.bar
        held = ui.time_travel.has_position
        has_moved = ui.paused and ui.state.time != self._shown_at
        if has_moved:
            self._viewport.reveal(extent, width)
        elif self._was_held and not held:
            self._viewport.release()
        self._shown_at, self._was_held = ui.state.time, held
        before = self._window, self._position_column
        self._window = self._viewport.window(extent, width)
        self._position_column = self._window.column(extent.now) if held else None
        if (self._window, self._position_column) != before or changes.touched is None:
            self._bars.clear()
        if self.by_arrival:
            self._arrange(changes)
        self.row_lines = min(max(self.size.height // max(self.num_rows, 1), 1), _MAX_LINES)
        self.show()
        if has_moved:
            self.reveal_selected()

    def sort(self, *, by_arrival: bool) -> None:
        """Orders the rows by arrival, or like the table. Called under the lock of `ui`."""
        self.by_arrival = by_arrival
        self._arrivals.filter = self._ui.view.filter
        self._arrivals.rebuild(self._ui.state)

    def reveal_bar(self) -> None:
        """Moves the window to the bar of the selected request, if none of it is visible.

        Called under the lock of `ui`.
        """
        if (selection := self._ui.selection) is None or not self._ui.cursor.set_by_user:
            return
        request, extent = selection[0], self.extent
        end = request.spans[-1].end
        last = extent.now if end is None else end
        self._viewport.release()
        self._viewport.reveal_span(
            extent, self.layout_columns.bar, request.metrics.arrival_time, last
        )

    def reveal_window(self) -> None:
        """Scrolls to the first row whose bar is not before the window."""
        for row_index, key in enumerate(self.page(0, self.num_rows)):
            pair = self._ui.sequence(key)
            end = pair[0].spans[-1].end if pair else None
            if pair and (end is None or end >= self._window.start):
                self.scroll_to(y=row_index * self.row_lines, animate=False, force=True)
                return

    def more_lines(self, key: int) -> Sequence[Line]:
        line = self.line(key)  # its bar is known now
        bar = self._bars[key][1] if line else ()
        left: StyledText = (" " * (self.layout_columns.name + 3), PLAIN)
        lower = (left, *((text.translate(_BELOW), style) for text, style in bar))
        return (lower, ())[: self.row_lines - 1]

    def line(self, key: int) -> Line:
        pair = self._ui.sequence(key)
        if pair is None:  # removed since the view was last updated; the next frame has no such row
            return ()
        request, sequence = pair
        last = request.spans[-1]
        now = self._ui.state.time
        place = ((now if last.end is None else last.end) - self._window.start) / self._window.cell
        # While this is the same, the bar is the same, within half a cell.
        looks = (
            len(request.spans), last.kind, int(place) if math.isfinite(place) else 0,
            request.finish_reason,
        )  # fmt: skip
        known = self._bars.get(key)
        if known is None or known[0] != looks:
            bar = timeline_bars.bar(request, self._window, now, glyph(request, sequence))
            known = self._bars[key] = (
                looks,
                timeline_bars.marked(bar, self._position_column, POSITION_MARK, _KEPT),
            )
            if len(self._bars) > 4 * max(self.size.height, 64):
                self._bars = {key: known}
        return (
            *_name(request, sequence, self.layout_columns.name),
            (" ", PLAIN),
            *known[1],
            *_figures(request, now),
        )

    def _arrange(self, changes: Changes) -> None:
        view, current = self._arrivals, self._ui.view.filter
        if changes.touched is None or view.filter is not current:
            view.filter = current
            view.rebuild(self._ui.state)
            return
        view.update(self._ui.state, changes.touched)
        if changes.ticked:
            view.tick(self._ui.state)


class TimeAxis(LineView):
    """The titles and times of day, and a ruler with ticks, steps and the moment on display."""

    def __init__(self, ui: UiState) -> None:
        super().__init__(id="axis")
        self._ui = ui

    def update(self, rows: TimelineRows) -> None:
        """Draws the axis of `rows`. Called under the lock of `ui`."""
        if not self.size:
            return
        window, name = rows.window, rows.layout_columns.name
        found_ticks = ticks(window)
        left = " " * (MARGIN + 1)
        figures = f" {'Waited':>{_FIGURE}} {'E2E':>{_FIGURE}}"
        ruler = {tick.column: ("┬", "dim") for tick in found_ticks}
        ruler = dict.fromkeys(self._steps(window), ("╷", "dim")) | ruler
        if (position := rows.position_column) is not None:
            ruler[position] = ("▼", "accent")
        line = [ruler.get(column, ("─", "track")) for column in range(window.width)]
        scale = f"{fmt.seconds(window.cell)}/cell"
        self.set_lines(
            [
                (
                    (left + "Request".ljust(name + 2), "dim"),
                    (labels(found_ticks, window.width), PLAIN),
                    (figures, "dim"),
                ),
                (
                    (" " + scale.ljust(name + 3), "dim"),
                    *merged(line),
                ),
            ]
        )

    def _steps(self, window: TimeWindow) -> list[int]:
        """Returns the columns in which a step ended; none if they are too close together."""
        index = self._ui.source.history.index
        first = index.num_steps_until(index.at_time(window.start))
        last = index.num_steps_until(index.at_time(window.end))
        if (last - first) * _LEAST_STEP > window.width:
            return []
        times = (index[position].time for position in index.steps(first, last))
        return [column for time in times if (column := window.column(time)) is not None]


def legend(width: int) -> Line:
    """Returns the meanings of the glyphs, the rarest of which are left out first."""
    kinds, breaks = timeline_bars.KINDS, timeline_bars.BREAKS
    named: list[tuple[int, StyledText, str]] = [
        *((7 if kind == "swapped" else 0, piece, kind) for kind, piece in kinds.items()),
        (4, breaks["preempted"], "preemption"),
        (8, breaks["swapped"], "swap"),
        *((rank, GLYPHS[word], word) for word, rank in _ENDS.items()),
        (5, POSITION_MARK, "moment on display"),
    ]
    return row([(rank, (piece, (f" {name}", "dim"))) for rank, piece, name in named], width)


def _name(request: RequestState, sequence: SequenceState, width: int) -> Line:
    style = "finished" if SequenceStatus.is_finished(sequence.status) else "strong"
    sign, sign_style = glyph(request, sequence)
    name = safe_text(sequence_name(request, sequence))
    if text_width(name) > width:
        name = shortened(name, width)
    return ((sign, sign_style), (" ", PLAIN), *fitted(((name, style),), width))


def _figures(request: RequestState, now: float) -> Line:
    e2e = latency.e2e_latency(request.metrics)
    so_far = now - request.metrics.arrival_time if request.finish_reason is None else None
    waited_text = fmt.seconds if request.wait.since is None else fmt.growing
    e2e_text = fmt.growing(so_far) if e2e is None else fmt.seconds(e2e)
    return (
        (f" {waited_text(waited(request, now)):>{_FIGURE}}", PLAIN),
        (f" {e2e_text:>{_FIGURE}}", "dim" if e2e is None else PLAIN),
    )
