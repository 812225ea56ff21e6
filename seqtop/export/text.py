"""The sequence table as plain text (`seqtop show --text`), without control characters."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.cells import cell_len, set_cell_size, split_graphemes

from seqtop.state import EngineState, RequestState, SequenceState, verdict
from seqtop.state.fields import FIELDS, Field
from seqtop.state.filter import NO_FILTER, Filter
from seqtop.state.ordering import SequenceView, Sort
from seqtop.text import format as fmt
from seqtop.text import tables
from seqtop.text.column_layout import UNLIMITED, fit
from seqtop.text.sanitize import MAX_LINE, safe_line, safe_text

_PLAIN_WIDTH = 160
"""Cells to a line where standard output is not a terminal."""
_MIN_TEXT_WIDTH = 20

_COLUMNS = (
    "request", "status", "prompt", "cached", "computed", "total", "out", "blocks",
    "ttft", "itl", "waited", "preempt", "text",
)  # fmt: skip
_KEPT = ("total",)
"""The columns that stay in a narrow terminal, besides those that the app's own table keeps."""


def table(
    state: EngineState,
    *,
    columns: Sequence[str] | None = None,
    sort: Sort = Sort(),  # noqa: B008 (immutable)
    filter_: Filter = NO_FILTER,
) -> str:
    """Returns a line of titles and a line per sequence.

    The caller holds the lock of `state`.

    Args:
        state: The state to show.
        columns: Keys of `seqtop.state.fields.FIELDS`; by default the columns that fit.
        sort: The order of the sequences; by default that of the app.
        filter_: The sequences to show.
    """
    view = SequenceView()
    view.sort, view.filter = sort, filter_
    view.rebuild(state)
    sequences = [state.sequences[seq_id] for seq_id in view.page(0, len(view))]
    redacted = state.info is not None and state.info.redacted
    missing = state.info.not_available if state.info is not None else {}
    rows = [(state.requests[sequence.request_id], sequence) for sequence in sequences]
    fields = [FIELDS[key] for key in columns or _COLUMNS]
    texts = {
        field.key: [
            fmt.NOT_AVAILABLE
            if field.key in missing
            else _cell(field, request, sequence, state.time)
            for request, sequence in rows
        ]
        for field in fields
        if field.key not in _TEXTS
    }
    sized = [
        replace(
            field,
            width=_MIN_TEXT_WIDTH,
            min_width=None if columns else 1,
            max_width=UNLIMITED,
            share=0.0,
        )
        if field.key in _TEXTS
        else replace(field, width=max(map(cell_len, [field.title, *texts[field.key]])), max_width=0)
        for field in fields
    ]
    room = min(shutil.get_terminal_size((_PLAIN_WIDTH, 24)).columns, MAX_LINE)
    shown = fit(sized, room, gap=len(tables.GAP), keep=columns or _KEPT)
    for field in shown:
        if field.key in _TEXTS:
            text_of = _TEXTS[field.key]
            texts[field.key] = [
                "redacted" if redacted else text_of(*row, field.width) for row in rows
            ]
    cells = zip(*((field.title, *texts[field.key]) for field in shown), strict=True)
    # A number is here without its bar.
    left = [n for n, field in enumerate(shown) if not field.right and field.key != "computed"]
    return "\n".join(tables.table(cells, left))


def verdicts(state: EngineState, *, is_recording: bool) -> str:
    """Returns what limits the engine in a line; of a recording, also what limited all of it."""
    whole = [verdict.of_whole(state)] if is_recording else []
    return tables.plain(own.sentence for own in (*whole, verdict.of_last_minute(state)))


def _cell(field: Field, request: RequestState, sequence: SequenceState, now: float) -> str:
    value = field.value(request, sequence, now)
    return safe_line(value) if isinstance(value, str) else field.format(value)


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
    "prompt_text": lambda request, _, width: _head(request.prompt or "", width),
}
"""Columns that fill the room left: the end of an output, the beginning of a prompt."""
