"""The lifecycle of one request, to scale: queued, prefill, decode, preempted."""

import math
from collections import defaultdict
from collections.abc import Sequence

from seqtop.sequence import latency
from seqtop.state import RequestState, SequenceState, Span
from seqtop.state.fields import waited
from seqtop.text import format as fmt
from seqtop.tui.rendering.bars import figure, row, rows
from seqtop.tui.rendering.style import PLAIN, Line, StyledText, fitted, merged
from seqtop.tui.rendering.timeline_bars import KINDS
from seqtop.tui.screens.sequences.pane import FittingPane
from seqtop.tui.ui_state import UiState

_ROOMY = 10
"""From this height on, each kind of span has its own line in the legend."""


class RequestTimeline(FittingPane):
    """The timeline of the selected sequence's request."""

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui, id="timeline", title="Timeline")

    def update(self) -> None:
        """Draws the lines that look different. Called under the lock of `ui`."""
        if (selection := self._ui.selection) is None or not self.outer_size:
            self.set_lines(())
            return
        request, sequence = selection
        is_roomy = self.styles.auto_dimensions or self.size.height >= _ROOMY
        lines = timeline_lines(
            request, sequence, self._ui.state.time, self.text_width, is_roomy=is_roomy
        )
        self.fit_lines(sequence.seq_id, lines)


def timeline_lines(
    request: RequestState, sequence: SequenceState, now: float, width: int, *, is_roomy: bool
) -> list[Line]:
    """Returns the bar, the axis, the legend and the figures; if not roomy, a short legend."""
    start = request.metrics.arrival_time
    end = request.metrics.finished_time or max(now, request.metrics.last_token_time)
    sums = _sums(request.spans, end)
    legend = _legend(sums, end - start, width) if is_roomy else [_short_legend(sums, width)]
    gap: list[Line] = [()] if is_roomy else []
    return [
        scale(request.spans, start, end, width),
        axis(end - start, width),
        *legend,
        *gap,
        *_figures(request, sequence, end - start, width),
    ]


def scale(spans: Sequence[Span], start: float, end: float, width: int) -> Line:
    """Returns a bar whose cells show the kind of span that fills most of each."""
    length = end - start
    if not (math.isfinite(length) and length > 0):
        return (("·" * width, "track"),)
    cells: list[defaultdict[str, float]] = [defaultdict(float) for _ in range(width)]
    for span in spans:
        left = _cell(span.start, start, length, width)
        right = _cell(end if span.end is None else span.end, start, length, width)
        for index in range(int(left), min(math.ceil(right), width)):
            cells[index][span.kind] += min(right, index + 1) - max(left, index)
    pieces: list[StyledText] = []
    for cell in cells:
        kind, share = max(cell.items(), key=lambda item: item[1], default=("", 0.0))
        pieces.append(KINDS[kind] if share > 0 else ("·", "track"))
    return merged(pieces)


def axis(length: float, width: int) -> Line:
    """Returns the labels of the axis: start, quarters and end."""
    parts = 4 if width >= 48 else 2
    text = ""
    for index in range(parts + 1):
        mark = fmt.seconds(length * index / parts)
        at = round(index * width / parts)
        column = 0 if index == 0 else at - len(mark) if index == parts else at - len(mark) // 2
        text = text.ljust(column) + mark if column > len(text) or not index else text
    return ((text[:width], "dim"),)


def _cell(time: float, start: float, length: float, width: int) -> float:
    place = (time - start) / length * width
    return min(max(place, 0.0), float(width)) if math.isfinite(place) else 0.0


def _sums(spans: Sequence[Span], end: float) -> dict[str, tuple[float, list[Span]]]:
    sums: dict[str, tuple[float, list[Span]]] = {}
    for kind in KINDS:
        mine = [span for span in spans if span.kind == kind]
        if mine:
            time = sum((end if span.end is None else span.end) - span.start for span in mine)
            sums[kind] = (time, mine)
    return sums


def _legend(sums: dict[str, tuple[float, list[Span]]], length: float, width: int) -> list[Line]:
    lines: list[Line] = []
    for kind, (time, spans) in sums.items():
        glyph, style = KINDS[kind]
        line: Line = (
            (glyph * 2, style),
            (f" {kind:<10}", PLAIN),
            (f"{fmt.seconds(time):>8}", "strong"),
            (f"{fmt.percent(time, length):>7}", PLAIN),
            (f"   {_content(kind, spans)}", "dim"),
        )
        lines.append(fitted(line, width))
    return lines


def _content(kind: str, spans: list[Span]) -> str:
    tokens = fmt.plural(sum(span.num_tokens for span in spans), "token")
    steps = fmt.plural(sum(span.num_steps for span in spans), "step")
    match kind:
        case "prefill":
            return f"{tokens} in {fmt.plural(len(spans), 'chunk')}"
        case "decode":
            return f"{tokens} in {steps}"
    return "" if len(spans) == 1 else f"{len(spans)} times"


def _short_legend(sums: dict[str, tuple[float, list[Span]]], width: int) -> Line:
    # The kinds that take the most cells of the bar are named first.
    longest_first = sorted(sums, key=lambda kind: sums[kind][0], reverse=True)
    return row(
        [
            (
                longest_first.index(kind),
                (
                    (KINDS[kind][0], KINDS[kind][1]),
                    (f" {kind} ", "dim"),
                    (fmt.seconds(time), PLAIN),
                ),
            )
            for kind, (time, _) in sums.items()
        ],
        width,
    )


def _figures(
    request: RequestState, sequence: SequenceState, length: float, width: int
) -> list[Line]:
    metrics = request.metrics
    finished = latency.e2e_latency(metrics) is not None
    latencies = (
        ("TTFT", latency.ttft(metrics)),
        ("ITL", latency.itl_so_far(metrics, len(sequence.output_token_ids))),
        ("queue", metrics.time_in_queue),
        ("e2e" if finished else "so far", length),
    )
    return [
        *rows((figure(name, fmt.seconds(value)) for name, value in latencies), width),
        *rows(
            (
                (*figure(name, fmt.seconds(value)), (f" {fmt.percent(value, length)}", "dim"))
                for name, value in time_parts(request, length)
            ),
            width,
        ),
    ]


def time_parts(request: RequestState, length: float) -> list[tuple[str, float]]:
    """Returns the parts of the seconds since the arrival of a request, which add up to these.

    `other` is the time in its steps outside of scheduling and execution, behind a step that the
    next one overlaps, and between them. Without any times from the engine, there are no parts.
    """
    metrics, forward = request.metrics, request.metrics.model_forward_time
    executing = metrics.model_execute_time
    reported: list[tuple[str, float]] = []
    if metrics.scheduler_time is not None:
        reported.append(("scheduler", metrics.scheduler_time))
    if forward is not None:
        reported.append(("forward", forward))
    if executing is not None:
        name = "execute" if forward is None else "execute without forward"
        reported.append((name, max(executing - (forward or 0.0), 0.0)))
    if not reported:
        return []
    left, parts = max(length, 0.0), list[tuple[str, float]]()
    for name, seconds in (
        ("waiting", waited(request, metrics.arrival_time + length)),
        *reported,
        ("other", math.inf),
    ):
        known = min(seconds, left) if seconds > 0 else 0.0  # an engine may say anything
        parts.append((name, known))
        left -= known
    return parts
