"""The sequences of the selected group that hold the most blocks."""

import heapq

from seqtop.state import SequenceState
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

    The sequences change places once a second at most.
    """

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui, id="holders", title="Most blocks")
        self._shown: tuple[object, ...] = ()

    def update(self) -> None:
        """Draws the lines that look different. Called under the lock of `ui`."""
        row_id = self._ui.cursor.seq_id
        position = self._ui.time_travel.position if self._ui.paused else None
        grouped = self._ui.view.grouped
        shown = (grouped.by, row_id, self._ui.second, position, self.size)
        if row_id is not None and self.size and shown != self._shown:
            self._shown = shown
            self.set_lines(holder_lines(self._ui, row_id, self.text_width, self.size.height))


def holder_lines(ui: UiState, row_id: int, width: int, height: int) -> list[Line]:
    """Returns a line for each of the largest holders of blocks of the group with a row."""
    held = {
        seq_id: _num_blocks(ui.state.sequences[seq_id])
        for seq_id in ui.view.grouped.holders(row_id)
    }
    largest = heapq.nsmallest(height, held, key=lambda seq_id: (-held[seq_id], seq_id))
    if not largest:
        return [(("None of its sequences holds blocks.", "dim"),)]
    if len(held) > height:
        del largest[max(height - 1, 0) :]
    room = max(width - _STATUS - _BLOCKS - 2, 2)
    name_width = min((room + 1) // 2, _MOST_NAME)
    bar_width = min(room - name_width, _MOST_BAR)
    lines: list[Line] = []
    for seq_id in largest:
        sequence = ui.state.sequences[seq_id]
        request = ui.state.requests[sequence.request_id]
        sign, style = glyph(request, sequence)
        name = safe_line(sequence_name(request, sequence))
        lines.append(
            (
                *fitted(((name, PLAIN),), name_width),
                *fitted(((f" {sign} {status_word(request, sequence)}", style),), _STATUS),
                (f"{fmt.count(held[seq_id]):>{_BLOCKS}} ", "strong"),
                *bar(bar_width, held[largest[0]], [(held[seq_id], "computed", "━")]),
            )
        )
    if len(held) > height:
        lines.append(((f"and {len(held) - len(largest):,} more", "dim"),))
    return lines


def _num_blocks(sequence: SequenceState) -> int:
    """Returns the number of blocks in all tables of a sequence."""
    return len(sequence.block_table) + sum(map(len, sequence.group_block_tables))
