"""The sequence table as plain text (`seqtop show --text`): no colours, no control characters."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from rich.cells import cell_len, set_cell_size, split_graphemes

from seqtop import format as fmt
from seqtop.safe import safe_text
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.columns import FIELDS
from seqtop.state.view import SequenceView

_PLAIN_WIDTH = 160
"""Cells to a line where standard output is not a terminal."""
_MIN_TEXT_WIDTH = 20
_GAP = "  "

_FORMATS: dict[str, Callable[[float | None], str]] = {
    "ttft": fmt.seconds,
    "itl": fmt.seconds,
    "queue": fmt.seconds,
}
_COLUMNS = (
    "request", "status", "prompt", "cached", "computed", "total", "out", "blocks",
    "ttft", "itl", "queue", "preempt",
)  # fmt: skip
_DROPPED_FIRST = ("itl", "queue", "prompt", "cached", "ttft", "preempt", "blocks", "out")
"""What goes, in this order, while a line has too little room for text."""


def table(state: EngineState) -> str:
    """One line per sequence, in the app's own order; hold the lock of `state` meanwhile."""
    view = SequenceView()
    view.rebuild(state)
    sequences = [state.sequences[seq_id] for seq_id in view.page(0, len(view))]
    columns = {
        key: [
            FIELDS[key].title,
            *(_cell(key, state.requests[each.request_id], each, state.time) for each in sequences),
        ]
        for key in _COLUMNS
    }
    widths = {key: max(map(cell_len, cells)) for key, cells in columns.items()}
    room = shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns
    for key in _DROPPED_FIRST:
        if _text_width(widths, room) >= _MIN_TEXT_WIDTH:
            break
        del widths[key]
    text_width = max(_text_width(widths, room), 0)
    texts = ["Text", *(_tail(safe_text(each.text[-room:]), text_width) for each in sequences)]
    lines = [
        _GAP.join([*(_aligned(columns[key][row], key, widths[key]) for key in widths), text])
        for row, text in enumerate(texts)
    ]
    return "\n".join(line.rstrip() for line in lines)


def _cell(key: str, request: RequestState, sequence: SequenceState, now: float) -> str:
    value = FIELDS[key].value(request, sequence, now)
    if isinstance(value, str):
        return safe_text(value)
    return _FORMATS.get(key, fmt.count)(value)


def _text_width(widths: dict[str, int], room: int) -> int:
    return room - sum(widths.values()) - len(_GAP) * len(widths)


def _aligned(text: str, key: str, width: int) -> str:
    if key in {"request", "status"}:
        return set_cell_size(text, width)
    return " " * (width - cell_len(text)) + text


def _tail(text: str, width: int) -> str:
    """The end of `text` that takes at most `width` cells."""
    excess = cell_len(text) - width
    if excess <= 0:
        return text
    spans, _ = split_graphemes(text)
    for _, end, size in spans:
        excess -= size
        if excess <= 0:
            return text[end:]
    return ""
