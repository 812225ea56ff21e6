"""The sequences of the selected group that hold the most blocks."""

import heapq
from collections.abc import Sequence, Set

from seqtop.state import EngineState, SequenceState
from seqtop.state.fields import sequence_name, status_word
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.tui.rendering.bars import bar
from seqtop.tui.rendering.sequence_label import glyph
from seqtop.tui.rendering.style import PLAIN, Line, fitted
from seqtop.tui.screens.sequences.pane import DetailPane
from seqtop.tui.ui_state import UiState

_STATUS, _BLOCKS, _MOST_NAME, _MOST_BAR = 11, 7, 32, 40
"""The cells of the columns."""


class GroupHolders(DetailPane):
    """A line for each sequence of the selected group that holds blocks, the largest first.

    They are chosen and ordered once a second; their figures follow every change.
    """

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui, id="holders", title="Most blocks")
        self._chosen_for: tuple[object, ...] = ()
        self._largest: list[int] = []

    def update(self) -> None:
        """Draws the lines that look different. Called under the lock of `ui`."""
        ui, row_id, height = self._ui, self._ui.cursor.seq_id, self.size.height
        if row_id is None or not height:
            return
        holders = ui.view.grouped.holders(row_id)
        position = ui.time_travel.position if ui.paused else None
        chosen_for = (ui.view.grouped.by, row_id, ui.second, position, height)
        if chosen_for != self._chosen_for:
            self._chosen_for = chosen_for
            self._largest = _largest(ui.state, holders, height)
        shown = [seq_id for seq_id in self._largest if seq_id in holders]
        lines = holder_lines(ui.state, shown, self.text_width)
        if not holders:
            lines = [(("None of its sequences holds blocks.", "dim"),)]
        elif (more := len(holders) - len(shown)) > 0:
            lines.append(((f"and {more:,} more", "dim"),))
        self.set_lines(lines)


def _largest(state: EngineState, holders: Set[int], height: int) -> list[int]:
    """Returns those with the most blocks, as many as there is room for in `height` lines."""
    most = height if len(holders) <= height else height - 1
    return heapq.nsmallest(
        most, holders, key=lambda seq_id: (-_num_blocks(state.sequences[seq_id]), seq_id)
    )


def holder_lines(state: EngineState, seq_ids: Sequence[int], width: int) -> list[Line]:
    """Returns a line for each sequence: name, status, blocks, and a bar for their number."""
    room = max(width - _STATUS - _BLOCKS - 2, 2)
    name_width = min((room + 1) // 2, _MOST_NAME)
    bar_width = min(room - name_width, _MOST_BAR)
    held = [_num_blocks(state.sequences[seq_id]) for seq_id in seq_ids]
    lines: list[Line] = []
    for seq_id, num_blocks in zip(seq_ids, held, strict=True):
        sequence = state.sequences[seq_id]
        request = state.requests[sequence.request_id]
        sign, style = glyph(request, sequence)
        name = safe_line(sequence_name(request, sequence))
        lines.append(
            (
                *fitted(((name, PLAIN),), name_width),
                *fitted(((f" {sign} {status_word(request, sequence)}", style),), _STATUS),
                (f"{fmt.count(num_blocks):>{_BLOCKS}} ", "strong"),
                *bar(bar_width, max(held), [(num_blocks, "computed", "━")]),
            )
        )
    return lines


def _num_blocks(sequence: SequenceState) -> int:
    """Returns the number of blocks in all tables of a sequence."""
    return len(sequence.block_table) + sum(map(len, sequence.group_block_tables))
