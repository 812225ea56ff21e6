"""Moves through the history that also select what is there."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from seqtop.history.timeline import RecordingError
from seqtop.state import SequenceState
from seqtop.tui import seek
from seqtop.tui.ui_state import UiState

if TYPE_CHECKING:
    from seqtop.checks.background import LocatedFinding


def jump(ui: UiState, wanted: seek.Seek, failure: str) -> None:
    """Moves through the history, describes the event there, and selects its first request."""
    ui.time_travel.go(wanted, failure)
    if not ui.time_travel.key_message:
        describe_event(ui)


def describe_event(ui: UiState) -> None:
    """Describes the event at the position on display, and selects its first request."""
    travel, timeline = ui.time_travel, ui.source.history
    if not travel.has_position:
        return
    with timeline.lock, contextlib.suppress(RecordingError):
        event, costs = seek.describe_moment(timeline, travel.position)
        if costs:
            first = next(iter(costs))
            ui.cursor.pending = first if first in travel.state.requests else None
            names = ", ".join(f"{name} ({cost})" if cost else name for name, cost in costs.items())
            travel.seek_message = f"{event} here: {names}. {travel.seek_message}".rstrip()


def findings_about(ui: UiState, sequence: SequenceState) -> list[LocatedFinding]:
    """Returns the findings, up to the moment on display, that name a sequence."""
    position = ui.time_travel.position
    return ui.checks.about(ui.state, position, sequence.request_id, sequence.seq_id)


def go_to_finding(ui: UiState, located: LocatedFinding, message: str) -> None:
    """Moves to a finding, and selects its sequence and its block."""
    travel, finding = ui.time_travel, located.finding
    travel.go(seek.to_position(located.position), "")
    travel.seek_message = f"{message} {travel.seek_message}".rstrip()
    ui.update(redraw=True)
    ui.checks.selected = located.number
    if finding.block is not None:
        ui.blocks.block = finding.block
    request = ui.state.requests.get(finding.request_id or "")
    seq_ids = [finding.seq_id] if finding.seq_id is not None else request and request.seq_ids
    for seq_id in seq_ids or ():
        if seq_id in ui.state.sequences:
            ui.select(seq_id)
            break
