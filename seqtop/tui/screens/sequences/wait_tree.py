"""The wait graph of the selected request: whom it waits for, and what lets it advance."""

from __future__ import annotations

from seqtop.state import RequestState, SequenceState, transfer, wait_graph
from seqtop.state.remaining_wait import describe, remaining_wait
from seqtop.text.sanitize import safe_line
from seqtop.transport.connection import ConnectionState
from seqtop.tui.rendering.style import PLAIN, Line, fitted
from seqtop.tui.rendering.wrapped_text import wrap
from seqtop.tui.screens.sequences.pane import ScrollablePane
from seqtop.tui.ui_state import UiState

_OVER = (ConnectionState.LOST, ConnectionState.STOPPED)


class WaitTree(ScrollablePane):
    """The wait graph of the selected request as a tree; drawn once a second while time passes."""

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui, id="wait-tree", title="Waits for")
        self._shown: tuple[object, ...] = ()
        """The sequence, the moment and the width of the lines."""

    def update(self) -> None:
        if not self.outer_size:
            return
        ui, selection = self._ui, self._ui.selection
        if selection is None:
            self._shown = ()
            self.set_lines([])
            return
        position = ui.time_travel.position if ui.paused else None
        request, sequence = selection
        shown = sequence.seq_id, sequence.status, ui.second, position, self.text_width
        if shown != self._shown:
            self._shown = shown
            self.set_lines(wait_lines(ui, request, sequence, self.text_width))


def wait_lines(
    ui: UiState, request: RequestState, sequence: SequenceState, width: int
) -> list[Line]:
    """Returns what lets a request advance, the estimate of its wait, and the graph."""
    halves = transfer_lines(ui, request, width)
    if request.finish_reason is not None:
        return [(("It has ended, and waits for nothing.", "dim"),), *halves]
    graph = wait_graph.wait_graph(ui.state, request)
    lines = _paragraph(wait_graph.describe(graph), "alert" if graph.is_stuck else PLAIN, width)
    position = ui.view.queue.position(sequence.seq_id)
    if position is not None and not graph.is_stuck:
        admissions = ui.measured.windows["queue"].times
        estimate = remaining_wait(position[0], list(admissions), ui.state.time)
        lines += _paragraph(describe(estimate), "dim", width)
    for text in wait_graph.tree(graph):
        lines.append(fitted(((safe_line(text), PLAIN),), width))
    return [*lines, *halves]


def transfer_lines(ui: UiState, request: RequestState, width: int) -> list[Line]:
    """Returns where the other half of a request is that two engines run, as of now."""
    if not (transfer_id := request.transfer_id) or ui.paused:
        return []
    lines: list[Line] = []
    for other in ui.others:
        with other.lock:
            state = other.newest
            if (half := transfer.other_half(state, transfer_id)) is not None:
                is_over = other.source.connection.state in _OVER
                seen = "Transfer, as last seen" if is_over else "Transfer"
                lines += _paragraph(f"{seen}: {transfer.describe(state, half)}.", PLAIN, width)
    unknown = f"No other attached engine has its transfer {transfer_id}."
    return lines or _paragraph(unknown, "dim", width)


def _paragraph(text: str, style: str, width: int) -> list[Line]:
    safe = safe_line(text)
    return [((safe[start:end], style),) for start, end in wrap(safe, max(width, 10))]
