"""The latency of the selected request as a chain of parts, and who is charged for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from textual import events
from textual.message import Message

from seqtop.sequence import latency
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.tui.rendering.style import PLAIN, Line, fitted
from seqtop.tui.rendering.timeline_bars import KINDS
from seqtop.tui.rendering.wrapped_text import wrap
from seqtop.tui.screens.sequences.pane import ScrollablePane
from seqtop.tui.screens.sequences.selected_explanation import SelectedExplanation
from seqtop.tui.ui_state import UiState

if TYPE_CHECKING:
    from seqtop.explain.chain import Part
    from seqtop.explain.explanation import Explanation
    from seqtop.ledger.charged_explanation import ChargedExplanation

_INDENT = "   "
_MAX_CHARGED = 8
_PART_WIDTH = 50
"""The cells of a part's line without the axis."""
_MIN_AXIS, _MAX_AXIS = 8, 60
_WHOLE = 0.95
"""The share of the time from its beginning to its end from which on a part is drawn as whole."""
_HERE = "▸"
"""The mark of the parts that begin in the step on display."""


class LatencyParts(ScrollablePane):
    """The parts of the selected request's latency; a click on one goes to its step.

    While the request runs, they are drawn once a second.
    """

    class Chosen(Message):
        """A part was clicked."""

        def __init__(self, position: int) -> None:
            super().__init__()
            self.position = position

    def __init__(self, ui: UiState, explanation: SelectedExplanation) -> None:
        super().__init__(ui, id="latency-parts", title="Latency")
        self._explanation = explanation
        self._shown: tuple[object, ...] = ()
        """The explanation, the progress, the time, the position and the width of the lines."""
        self._positions: list[int | None] = []
        """The position of the part of each line."""

    def update(self) -> None:
        if not self.outer_size:
            return
        explanation = self._explanation.read()
        if explanation is None:
            self._shown, self._positions = (), []
            self.set_lines([])
            return
        position = self._ui.time_travel.position if self._ui.paused else None
        shown = (
            explanation,
            explanation.is_complete,
            self._ui.second,
            position,
            self.text_width,
        )
        if shown != self._shown:
            self._shown = shown
            lines = latency_lines(explanation, position, self.text_width)
            self._positions = [position for position, _ in lines]
            self.set_lines([line for _, line in lines])

    def on_click(self, event: events.Click) -> None:
        row = event.y + self.scroll_offset.y
        if row < len(self._positions) and (position := self._positions[row]) is not None:
            self.post_message(self.Chosen(position))


def latency_lines(
    explanation: ChargedExplanation, position: int | None, width: int
) -> list[tuple[int | None, Line]]:
    """Returns the lines of an explanation, each with the position of its part.

    Args:
        explanation: The explanation, which may be incomplete.
        position: The position on display; parts that begin later are dim. `None` for the newest.
        width: The cells of a line.
    """
    from seqtop.explain.report import headline

    if explanation.error:
        return [(None, ((safe_line(explanation.error), "dim"),))]
    lines: list[tuple[int | None, Line]] = [
        (None, fitted(((headline(explanation), "strong"), ("  ( ) part", "dim")), width))
    ]
    if not explanation.is_complete:
        lines.append((None, (("Reading the history…", "dim"),)))
    parts = explanation.parts()
    total = sum(part.seconds for part in parts)
    length = max((part.end for part in parts), default=0.0)
    ttft = latency.ttft(explanation.metrics)
    has_first_token = ttft is None or not any(part.before_first_token for part in parts)
    for part in parts:
        if not part.before_first_token and not has_first_token:
            lines.append((None, ((f"{_INDENT}{fmt.seconds(ttft):>8}  first token", "dim"),)))
            has_first_token = True
        lines += [
            (part.position, line)
            for line in _part_lines(explanation, part, total, length, position, width)
        ]
    if explanation.is_complete:
        lines += [(None, line) for line in _charge_lines(explanation, total, width)]
    return lines


def _charge_lines(explanation: ChargedExplanation, total: float, width: int) -> list[Line]:
    """Returns lines with those to whom the time is charged, the most seconds first."""
    from seqtop.ledger.report import causes, rows, signed

    listed = rows(explanation.charges())
    lines: list[Line] = [fitted((("Charged to", "strong"),), width)] if listed else []
    for row in listed[:_MAX_CHARGED]:
        seconds, estimated = row.seconds(), row.seconds("estimated")
        evidence = f"  {signed(estimated)} of it estimated" if estimated else ""
        first: Line = (
            (f"{_INDENT}{safe_line(row.title)}", PLAIN),
            (f"  {signed(seconds)}", "strong"),
            (f" {fmt.percent(seconds, total)}", PLAIN),
            (evidence, "dim"),
        )
        text, room = safe_line(causes(row)), max(width - len(_INDENT) - 2, 10)
        lines.append(fitted(first, width))
        lines += [((f"{_INDENT}  {text[start:end]}", "dim"),) for start, end in wrap(text, room)]
    if (more := len(listed) - _MAX_CHARGED) > 0:
        lines.append(((f"{_INDENT}and {more:,} more", "dim"),))
    return lines


def _on_axis(part: Part, length: float, room: int, style: str) -> Line:
    """Returns where on the axis of the whole time a part lies; nothing if there is little room.

    A part in pieces, with others between them, is thin.
    """
    size = min(room, _MAX_AXIS)
    if size < _MIN_AXIS or not length > 0:
        return ()
    first = min(int(part.start / length * size), size - 1)
    last = min(max(math.ceil(part.end / length * size), first + 1), size)
    is_whole = part.seconds >= _WHOLE * (part.end - part.start)
    sign = "━" if is_whole else "╌"
    return (
        ("·" * first, "dim"),
        (sign * (last - first), style),
        ("·" * (size - last), "dim"),
    )


def _part_lines(
    explanation: Explanation,
    part: Part,
    total: float,
    length: float,
    position: int | None,
    width: int,
) -> list[Line]:
    from seqtop.explain.report import describe

    is_later = position is not None and part.position is not None and part.position > position
    is_here = position is not None and part.position == position
    sign, style = KINDS.get(part.kind, ("·", "dim"))
    plain, strong = ("dim", "dim") if is_later else (PLAIN, "strong")
    step = "" if part.step is None else f"step {part.step:,}"
    first: Line = (
        (f"{_HERE if is_here else ' '} ", "accent"),
        (sign, "dim" if is_later else style),
        (f"{fmt.seconds(part.start):>8}  ", "dim"),
        (f"{part.kind:<11}", plain),
        (f"{fmt.seconds(part.seconds):>8}", strong),
        (f" {fmt.percent(part.seconds, total):>5}  ", plain),
        *_on_axis(part, length, width - _PART_WIDTH, "dim" if is_later else style),
        (f"  {step}", "dim"),
    )
    text = safe_line(describe(part, explanation.request_id))
    room = max(width - len(_INDENT) - 2, 10)
    more: list[Line] = [
        ((f"{_INDENT}  {text[start:end]}", "dim"),) for start, end in wrap(text, room) if text
    ]
    return [fitted(first, width), *more]
