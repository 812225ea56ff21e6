"""The sequence table as plain text (`seqtop show --text`), without control characters."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

from rich.cells import cell_len, set_cell_size, split_graphemes

from seqtop import format as fmt
from seqtop.sanitize import safe_line, safe_text
from seqtop.state import EngineState, RequestState, SequenceState
from seqtop.state.fields import FIELDS
from seqtop.state.filter import NO_FILTER, Filter
from seqtop.state.ordering import SequenceView, Sort

_PLAIN_WIDTH = 160
"""The width of a line, in cells, if standard output is not a terminal."""
_MIN_TEXT_WIDTH = 20
_GAP = "  "

_FORMATS: dict[str, Callable[[float | None], str]] = {
    "ttft": fmt.seconds,
    "itl": fmt.seconds,
    "queue": fmt.seconds,
    "e2e": fmt.seconds,
    "tps": fmt.rate,
}
_LEFT = {"request", "id", "status", "stage", "text", "ask"}
_COLUMNS = (
    "request", "status", "prompt", "cached", "computed", "total", "out", "blocks",
    "ttft", "itl", "queue", "preempt",
)  # fmt: skip
_DROPPED_FIRST = ("itl", "queue", "prompt", "cached", "ttft", "preempt", "blocks", "out")
"""Columns dropped, in this order, while a line has too little room for text."""


def table(
    state: EngineState,
    *,
    columns: Sequence[str] | None = None,
    sort: Sort = Sort(),  # noqa: B008 (immutable)
    filter_: Filter = NO_FILTER,
) -> str:
    """Returns a heading and one line per sequence. The caller holds the lock of `state`.

    Args:
        state: The state.
        columns: Keys of `seqtop.state.fields.FIELDS`; by default those that fit.
        sort: The order of the rows, by default that of the app.
        filter_: Selects the sequences.
    """
    view = SequenceView()
    view.sort, view.filter = sort, filter_
    view.rebuild(state)
    sequences = [state.sequences[seq_id] for seq_id in view.page(0, len(view))]
    keys = list(columns or (*_COLUMNS, "text"))
    texts = [key for key in keys if key in _TEXTS]
    cells = {
        key: [
            FIELDS[key].title,
            *(_cell(key, state.requests[each.request_id], each, state.time) for each in sequences),
        ]
        for key in keys
        if key not in _TEXTS
    }
    widths = {key: max(map(cell_len, column)) for key, column in cells.items()}
    room = shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns
    if columns is None:
        _make_room(widths, room)
    left = max(_text_width(widths, room), 0)
    redacted = state.info is not None and state.info.redacted
    for key in texts:
        width = left // len(texts) if columns is None else max(left // len(texts), _MIN_TEXT_WIDTH)
        cells[key] = [
            FIELDS[key].title,
            *(
                "redacted"
                if redacted
                else _TEXTS[key](state.requests[each.request_id], each, width)
                for each in sequences
            ),
        ]
        widths[key] = width
    shown = [key for key in keys if key in widths]
    return "\n".join(
        _GAP.join(_aligned(cells[key][row], key, widths[key]) for key in shown).rstrip()
        for row in range(len(sequences) + 1)
    )


def _make_room(widths: dict[str, int], room: int) -> None:
    """Drops columns until there is room for text."""
    for key in _DROPPED_FIRST:
        if _text_width(widths, room) >= _MIN_TEXT_WIDTH:
            break
        del widths[key]


def _cell(key: str, request: RequestState, sequence: SequenceState, now: float) -> str:
    value = FIELDS[key].value(request, sequence, now)
    if isinstance(value, str):
        return safe_line(value)
    return _FORMATS.get(key, fmt.count)(value)


def _text_width(widths: dict[str, int], room: int) -> int:
    return room - sum(widths.values()) - len(_GAP) * len(widths)


def _aligned(text: str, key: str, width: int) -> str:
    if key in _LEFT:
        return set_cell_size(text, width)
    return " " * (width - cell_len(text)) + text


def _tail(text: str, width: int) -> str:
    """Returns the end of `text` in at most `width` cells, after `…` if it is cut."""
    shown = safe_text(text[-max(width + 1, 1) :])  # one more, to detect a cut
    excess = cell_len(shown) - width
    if excess <= 0:
        return shown
    spans, _ = split_graphemes(shown)
    for _, end, size in spans:
        excess -= size
        if excess < 0:
            return f"…{shown[end:]}"
    return ""


def _head(text: str, width: int) -> str:
    """Returns the beginning of `text` in at most `width` cells, before `…` if it is cut."""
    shown = safe_text(text[: width + 1])
    if cell_len(shown) <= width:
        return shown
    return f"{set_cell_size(shown, width - 1)}…" if width > 0 else ""


_TEXTS: dict[str, Callable[[RequestState, SequenceState, int], str]] = {
    "text": lambda _, sequence, width: _tail(sequence.text, width),
    "ask": lambda request, _, width: _head(request.prompt or "", width),
}
"""Columns that fill the room left: the end of an output, the beginning of a prompt."""
