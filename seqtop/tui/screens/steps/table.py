"""The list of steps. It scrolls with new steps until the user moves the cursor."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from seqtop.tui.rendering.list_view import MARGIN, ColumnTitles, ListView, header
from seqtop.tui.rendering.style import PLAIN, Line
from seqtop.tui.screens.steps import cells
from seqtop.tui.screens.steps.step_log import StepLog
from seqtop.tui.ui_state import UiState

SHOWN_MARK = "▸"
"""The mark of the step on display, unless that is the newest."""


class StepTable(Vertical):
    """The titles and the rows below them."""

    def __init__(self, ui: UiState, log: StepLog) -> None:
        super().__init__()
        self.rows = StepRows(ui, log)
        self._titles = ColumnTitles(self._title_line)

    def compose(self) -> ComposeResult:
        yield self._titles
        yield self.rows

    def show(self) -> None:
        """Draws what looks different. Called under the lock of `ui`."""
        self.rows.show()
        self._titles.refresh_changed()

    def _title_line(self, width: int) -> Line:
        return ((" ", PLAIN), *header(cells.arrange(width - MARGIN, self.rows.occurring)))


class StepRows(ListView):
    """The steps of the history, the newest at the bottom.

    The cursor is on the step on display until the user moves it.
    """

    class Moved(Message):
        """The cursor is on another step."""

    _ui: UiState

    def __init__(self, ui: UiState, log: StepLog) -> None:
        super().__init__(ui)
        self._log = log
        self._chosen: int | None = None
        self._shown = -1
        self._row = 0
        self.occurring: frozenset[str] = frozenset()
        """The keys of the rare columns that a step that was visible so far has a figure for."""

    @property
    def cursor(self) -> int | None:
        """The position of the step under the cursor; `None` if there are no steps."""
        if self._chosen is not None:
            return self._chosen
        row = self._log.row(self._ui.time_travel.position)
        positions = self._log.page(row, row + 1)
        return positions[0] if positions else None

    @property
    def num_rows(self) -> int:
        return len(self._log)

    @property
    def cursor_row(self) -> int | None:
        cursor = self.cursor
        return None if cursor is None else self._log.row(cursor)

    def page(self, start: int, stop: int) -> Sequence[int]:
        return self._log.page(start, stop)

    def is_selected(self, key: int) -> bool:
        return key == self.cursor

    def line(self, key: int) -> Line:
        step = self._log.summary(key)
        mark: Line = ((SHOWN_MARK, "accent") if key == self._step_on_display else (" ", PLAIN),)
        if step is None:
            return (*mark, ("This step cannot be read.", "alert"))
        slots = cells.arrange(self.text_width - 2 * MARGIN, self.occurring)
        restarted = self._log.is_after_restart(key)
        return (*mark, *cells.row(slots, step, self._log.info(key), restarted=restarted))

    def show(self) -> None:
        """Draws the rows that look different. Called under the lock of `ui`."""
        before = self.cursor
        self._update_chosen()
        self.set_height(self.num_rows)
        row = self.cursor_row
        if row is not None and self._chosen is None:
            self.reveal(row)
        elif row is not None and row < self._row:  # the oldest steps were removed
            top = max(self.scroll_offset.y + row - self._row, 0)
            self.scroll_to(y=top, animate=False)
        self._row = row or 0
        self._find_occurring()
        self.refresh_changed()
        if self.cursor != before:
            self.post_message(self.Moved())

    def _find_occurring(self) -> None:
        """Adds the rare columns that the visible steps have figures for."""
        missing = cells.RARE.keys() - self.occurring
        if not missing:
            return
        top = self.scroll_offset.y
        summaries = [self._log.summary(key) for key in self.page(top, top + self.size.height)]
        steps = [step for step in summaries if step is not None]
        self.occurring |= {key for key in missing if any(map(cells.RARE[key], steps))}

    def select(self, key: int) -> None:
        """Puts the cursor on a step. On the newest step it moves with new steps."""
        with self._ui.lock:
            row = self._log.row(key)
            newest = row == self.num_rows - 1 and not self._is_held
            self._chosen = None if newest else key
            self._row = row
            self.reveal(row)
            self.refresh_changed()
        self.post_message(self.Moved())

    @property
    def _is_held(self) -> bool:
        """True if an older step than the newest may be on display."""
        return self._ui.time_travel.has_position

    @property
    def _step_on_display(self) -> int | None:
        """The step on display; `None` if that is the newest."""
        if not self._is_held:
            return None
        row = self._log.row(self._ui.time_travel.position)
        positions = self._log.page(row, row + 1)
        return positions[0] if positions and positions[0] <= self._ui.time_travel.position else None

    def _update_chosen(self) -> None:
        """Resets the cursor after a move through the history, and if its step was dropped."""
        position = self._ui.time_travel.position
        if self._ui.paused and position != self._shown:
            self._chosen = None
        self._shown = position
        oldest = self._log.page(0, 1)
        if self._chosen is not None and (not oldest or self._chosen < oldest[0]):
            self._chosen = oldest[0] if oldest else None
