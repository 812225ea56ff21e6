"""Rows of sequences in the order of a view, with the cursor on the selected one."""

from collections.abc import Sequence

from textual.message import Message

from seqtop.state.grouped_rows import GroupedRows
from seqtop.state.ordering import SequenceView
from seqtop.tui.rendering.list_view import CURSOR_MARK, ListView
from seqtop.tui.ui_state import UiState

FOLLOWED_MARK = "▸"
"""The cursor's mark while the view follows the selected sequence."""


class SequenceRows(ListView):
    """A row per sequence. A subclass draws the rows (`line`)."""

    class Moved(Message):
        """The cursor is on another sequence."""

    _ui: UiState

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui)
        self._cursor = 0

    @property
    def view(self) -> SequenceView | GroupedRows:
        """The sequences and their order."""
        return self._ui.view

    @property
    def num_rows(self) -> int:
        return len(self.view)

    @property
    def cursor_row(self) -> int | None:
        return self.view.index(self._ui.cursor.seq_id)

    @property
    def cursor_mark(self) -> str:
        return FOLLOWED_MARK if self._ui.cursor.is_followed else CURSOR_MARK

    def page(self, start: int, stop: int) -> Sequence[int]:
        return self.view.page(start, stop)

    def is_selected(self, key: int) -> bool:
        return key == self._ui.cursor.seq_id

    def show(self) -> None:
        """Draws the rows that look different. Called under the lock of `ui`."""
        self.set_height(self.num_rows * self.row_lines)
        self._update_selection()
        self.refresh_changed()

    def select(self, key: int | None) -> None:
        """Puts the cursor on a sequence and scrolls to it."""
        with self._ui.lock:
            changed = key != self._ui.cursor.seq_id
            self._ui.cursor.seq_id = key
            self._ui.cursor.set_by_user = True
            self._ui.cursor.hidden = None
            if changed:
                self._ui.blocks.block = None
            if (row := self.cursor_row) is not None:
                self._cursor = row
                self.reveal(row, around=self._ui.cursor.scroll_target == key)
            self.refresh_changed()
        if changed:
            self.post_message(self.Moved())

    def reveal_selected(self) -> None:
        """Scrolls to the selected row, if the user selected it."""
        with self._ui.lock:
            if self._ui.cursor.set_by_user and (row := self.cursor_row) is not None:
                self.reveal(row)

    def on_resize(self) -> None:
        if not self._height:  # before the first layout, there was nothing to scroll
            self.reveal_selected()

    def action_move(self, by: int) -> None:
        with self._ui.lock:
            row = self.cursor_row
            self.go(self._cursor if row is None else row + by)

    def _restore_selection(self) -> None:
        """Selects the sequence again that a filter has hidden, if it is shown now."""
        ui, hidden = self._ui, self._ui.cursor.hidden
        if hidden is None:
            return
        if (row := self.view.index(hidden)) is not None:
            ui.cursor.seq_id, ui.cursor.hidden = hidden, None
            self.reveal(row)
            self.post_message(self.Moved())
        elif hidden not in ui.state.sequences:
            ui.cursor.hidden = None

    def _update_selection(self) -> None:
        """Keeps the cursor on its sequence, or on its row if the sequence is gone.

        Until the user selects a sequence, the cursor is on the first row: the sequence that has
        run longest.
        """
        ui = self._ui
        self._restore_selection()
        row = self.cursor_row
        if row is None or (row > 0 and not ui.cursor.set_by_user):
            last = self.num_rows - 1
            self._cursor = max(min(self._cursor, last), 0) if ui.cursor.set_by_user else 0
            if ui.cursor.set_by_user and ui.cursor.hidden is None:
                ui.cursor.hidden = (
                    ui.cursor.seq_id if ui.cursor.seq_id in ui.state.sequences else None
                )
            keys = self.page(self._cursor, self._cursor + 1)
            ui.cursor.seq_id = keys[0] if keys else None
            self.post_message(self.Moved())
            return
        moved, self._cursor = row != self._cursor, row
        if (ui.is_scroll_target_selected() and moved) or ui.cursor.is_followed:
            self.reveal(row, around=not ui.cursor.is_followed)
        elif moved and ui.paused:  # the user has moved through time
            self.reveal(row)
