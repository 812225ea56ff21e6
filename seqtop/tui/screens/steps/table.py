"""The list of steps: the newest at the bottom, and in sight until one moves away from it."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from seqtop.tui.feed import Feed
from seqtop.tui.rendering.columns import header
from seqtop.tui.rendering.line_view import DrawnLine, LineView
from seqtop.tui.rendering.list_view import MARGIN, ListView
from seqtop.tui.rendering.style import PLAIN, Line
from seqtop.tui.screens.steps import cells
from seqtop.tui.screens.steps.step_log import StepLog

SHOWN_MARK = "▸"
"""Stands before the step that the picture is of, while that is not the newest."""


class StepTable(Vertical):
    """A row of titles and the rows below it."""

    def __init__(self, feed: Feed, log: StepLog) -> None:
        super().__init__()
        self.rows = StepRows(feed, log)

    def compose(self) -> ComposeResult:
        yield StepTitles()
        yield self.rows


class StepTitles(LineView):
    """The titles of the columns."""

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        line = header(cells.arrange(self.text_width - 2 * MARGIN))
        return [(((" " * 2 * MARGIN, PLAIN), *line), "header")]


class StepRows(ListView):
    """The steps on record. The cursor is on the one on show until somebody moves it."""

    class Moved(Message):
        """The cursor is on another step."""

    _feed: Feed

    def __init__(self, feed: Feed, log: StepLog) -> None:
        super().__init__(feed)
        self._log = log
        self._chosen: int | None = None
        self._shown = -1
        self._row = 0

    @property
    def cursor(self) -> int | None:
        """The position of the step that the cursor is on; `None` if no step is on record."""
        if self._chosen is not None:
            return self._chosen
        row = self._log.row(self._feed.position)
        found = self._log.page(row, row + 1)
        return found[0] if found else None

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
        mark: Line = ((SHOWN_MARK, "accent") if key == self._step_on_show else (" ", PLAIN),)
        if step is None:
            return (*mark, ("This step cannot be read.", "alert"))
        slots = cells.arrange(self.text_width - 2 * MARGIN)
        restarted = self._log.is_after_restart(key)
        return (*mark, *cells.row(slots, step, self._log.info(key), restarted=restarted))

    def show(self) -> None:
        """Draw what is new; call it under the feed's lock."""
        before = self.cursor
        self._keep_chosen()
        self.set_height(self.num_rows)
        row = self.cursor_row
        if row is not None and self._chosen is None:
            self.reveal(row)
        elif row is not None and row < self._row:  # the oldest steps have been dropped
            top = max(self.scroll_offset.y + row - self._row, 0)
            self.scroll_to(y=top, animate=False)
        self._row = row or 0
        self.refresh_changed()
        if self.cursor != before:
            self.post_message(self.Moved())

    def select(self, key: int) -> None:
        """Put the cursor on a step; on the newest it moves along with it."""
        with self._feed.lock:
            row = self._log.row(key)
            newest = row == self.num_rows - 1 and not self._holds
            self._chosen = None if newest else key
            self._row = row
            self.reveal(row)
            self.refresh_changed()
        self.post_message(self.Moved())

    @property
    def _holds(self) -> bool:
        """Whether the picture is of a moment that need not be the newest."""
        return self._feed.paused or self._feed.replay is not None

    @property
    def _step_on_show(self) -> int | None:
        """The step that the picture is of, if the picture is not simply the newest."""
        if not self._holds:
            return None
        row = self._log.row(self._feed.position)
        found = self._log.page(row, row + 1)
        return found[0] if found and found[0] <= self._feed.position else None

    def _keep_chosen(self) -> None:
        """Go along when one travels through time; move on when the step has been dropped."""
        position = self._feed.position
        if self._feed.paused and position != self._shown:
            self._chosen = None
        self._shown = position
        oldest = self._log.page(0, 1)
        if self._chosen is not None and (not oldest or self._chosen < oldest[0]):
            self._chosen = oldest[0] if oldest else None
