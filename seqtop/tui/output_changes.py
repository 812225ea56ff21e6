"""The keys that lead to the drops and spikes of the output."""

from __future__ import annotations

from seqtop.explain.headlines import Change, find_changes, headline, observe
from seqtop.tui import seek
from seqtop.tui.ui_state import UiState

_NEAR = 120.0
"""Seconds before and after the moment on display in which changes are looked for first: the longer
a time is, the longer are the windows that are compared in it."""


def go_to_change(ui: UiState, direction: int) -> None:
    """Goes to the first step of the next drop or spike, or of the one before, and describes it.

    Called under the lock of `ui`.
    """
    series, now = ui.step_series, ui.state.time
    wanted = None
    for start, end in ((now - _NEAR, now + _NEAR), (series.start, series.end)):
        changes = _by_position(ui, find_changes(series, start, end))
        wanted = seek.to_next(changes, direction)(ui.source.history, ui.time_travel.position)
        if wanted is not None:
            break
    if wanted is None:
        where = "after" if direction > 0 else "before"
        ui.time_travel.key_message = f"No drop or spike of the output {where} this moment."
        return
    change = changes[wanted]
    ui.time_travel.go(seek.to_position(wanted), "")
    if not ui.time_travel.key_message:
        ui.time_travel.seek_message = headline(change, observe(ui.source.history, change))


def _by_position(ui: UiState, changes: list[Change]) -> dict[int, Change]:
    """Returns changes by the position of their first step."""
    index = ui.source.history.index
    steps = ((index.next_step(index.at_time(change.time)), change) for change in changes)
    return {position: change for position, change in steps if position is not None}
