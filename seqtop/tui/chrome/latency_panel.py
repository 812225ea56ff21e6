"""Latencies of the last minute: percentiles, distribution and history."""

from collections.abc import Mapping, Sequence

from textual.timer import Timer

from seqtop.state.latency import Measured
from seqtop.state.sliding_window import WINDOW, SlidingWindow
from seqtop.state.slo import FIGURES, Slo
from seqtop.text import format as fmt
from seqtop.tui.rendering.bars import row, sparkline
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted
from seqtop.tui.ui_state import Changes, UiState

SECONDS_BETWEEN = 1.0
"""Seconds between two drawings while the engine runs."""
_BINS = 16
_NAME = 7
_NUMBER = 9
_HISTORY = "p50 each second"
_HISTORY_START = 73
"""The cells left of the history of the p50."""
_GAP, _NUM_LEFT = 4, 3
"""The cells between two columns, and the figures in the left one."""
TWO_COLUMNS = 2 * (_HISTORY_START + len(_HISTORY)) + _GAP
"""The width from which on there are two columns."""

HINT = "no limits; D sets some, and shows the goodput"


class LatencyPanel(LineView):
    """A line per figure, and the goodput if there are objectives.

    Changes of the engine are drawn a second later: percentiles sort up to 20,000 samples.
    """

    def __init__(self, ui: UiState) -> None:
        super().__init__(id="latency")
        self._ui = ui
        self._next: Timer | None = None
        """The timer of the next drawing, after a change."""
        self._position: int | None = None
        """The position of the moment of the last drawing, if the display was paused then."""

    def update(self, changes: Changes) -> None:
        """Draws changes, those of running sequences a second later.

        Called under the lock of `ui`.
        """
        if not self.display or not self.outer_size:
            return
        if changes.touched is None or self._paused_position != self._position:
            self._draw()
        elif self._next is None:
            self._next = self.set_timer(SECONDS_BETWEEN, self._draw_late)

    @property
    def _paused_position(self) -> int | None:
        return self._ui.time_travel.position if self._ui.paused else None

    def on_resize(self) -> None:
        self._draw_late()

    def _draw_late(self) -> None:
        with self._ui.lock:
            self._draw()

    def _draw(self) -> None:
        if self._next is not None:
            self._next.stop()
            self._next = None
        self._position = self._paused_position
        ui, width = self._ui, self.text_width
        self.set_class(width >= TWO_COLUMNS, "-two-columns")
        self.set_lines(latency_lines(ui.latencies.slo, ui.measured, ui.state.time, width))


def latency_lines(
    slo: Slo, measured: Measured, now: float, width: int, hint: str = HINT
) -> list[Line]:
    """Returns titles, a line per figure, and the goodput; side by side where there is room.

    Args:
        slo: The objectives.
        measured: The latencies of the last minute.
        now: The moment on display, epoch seconds.
        width: The cells of a line.
        hint: What stands in place of the goodput without objectives.
    """
    histories = _histories(measured, now)
    if width < TWO_COLUMNS:
        lines = _figure_lines([*FIGURES], slo, measured, histories, width)
        return [*lines, goodput(slo, measured.met, width, hint)]
    half = (width - _GAP) // 2
    figures = [*FIGURES]
    left = _figure_lines(figures[:_NUM_LEFT], slo, measured, histories, half)
    right = _figure_lines(figures[_NUM_LEFT:], slo, measured, histories, half)
    right.append(goodput(slo, measured.met, half, hint))
    return [
        (*fitted(one, half), (" " * _GAP, PLAIN), *other)
        for one, other in zip(left, right, strict=True)
    ]


def _histories(measured: Measured, now: float) -> dict[str, list[float]]:
    """Returns the medians of each figure by second, from the first second that any of them has."""
    medians = {key: measured.windows[key].medians(now) for key in FIGURES}
    known = (
        next((index for index, value in enumerate(values) if value == value), len(values))
        for values in medians.values()
    )
    start = min(known)
    return {key: values[start:] for key, values in medians.items()}


def _figure_lines(
    keys: Sequence[str],
    slo: Slo,
    measured: Measured,
    histories: Mapping[str, Sequence[float]],
    width: int,
) -> list[Line]:
    """Returns titles, and a line per figure."""
    heads = [f"{head:>{_NUMBER}}" for head in ("p50", "p90", "p99", "max")]
    titles = row(
        [
            (0, ((f"{'':<{_NAME}}{''.join(heads)}", "dim"),)),
            (1, ((f"{'samples':>8}", "dim"),)),
            (2, ((f"{'spread':<{_BINS}}", "dim"),)),
            (3, ((_HISTORY, "dim"),)),
        ],
        width,
    )
    lines = [titles]
    for key in keys:
        window, limit = measured.windows[key], slo.limits.get(key)
        figures = window.figures()
        numbers: list[StyledText] = [(f"{FIGURES[key]:<{_NAME}}", "strong")]
        for value in figures[1:]:
            text = fmt.seconds(value)
            over = limit is not None and value > limit
            text = f"!{text}" if over else text
            style = "alert" if over else PLAIN if figures.num else "dim"
            numbers.append((f"{text:>{_NUMBER}}", style))
        bins = window.histogram(_BINS) if figures.num else []
        has_room = width >= _HISTORY_START + len(_HISTORY)
        spark = sparkline(histories[key], width - _HISTORY_START) if has_room else ""
        lines.append(
            row(
                [
                    (0, tuple(numbers)),
                    (1, ((f"{fmt.count(figures.num):>8}", "dim"),)),
                    (2, ((f"{_histogram(bins):<{_BINS}}", "computed"),)),
                    (3, ((spark, "running"),) if has_room else ()),
                ],
                width,
            )
        )
    return lines


def goodput(slo: Slo, met: SlidingWindow, width: int, hint: str = HINT) -> Line:
    """Returns the share of the requests finished in the last minute that met all objectives.

    Args:
        slo: The objectives.
        met: Whether each request met them.
        width: The cells of the line.
        hint: What the line says without objectives.
    """
    since = f"last {WINDOW:g} s"
    if not slo:
        return row(
            [
                (0, ((since, "dim"),)),
                (1, ((hint, "dim"),)),
            ],
            width,
        )
    good = round(met.mean() * len(met)) if len(met) else 0
    return row(
        [
            (0, (("Goodput ", "strong"), (fmt.percent(good, len(met)), "strong"))),
            (1, ((f"{fmt.count(good)} of {fmt.count(len(met))} ended", PLAIN),)),
            (2, ((str(slo), "dim"),)),
            (3, ((since, "dim"),)),
        ],
        width,
    )


def _histogram(bins: list[int]) -> str:
    """Returns a sparkline in which an empty bin is blank."""
    sparks = sparkline([float(count) for count in bins], len(bins))
    return "".join(spark if count else " " for count, spark in zip(bins, sparks, strict=True))
