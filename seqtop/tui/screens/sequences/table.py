"""The sequence table: one line per sequence, drawn from the feed a line at a time."""

from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.message import Message
from textual.strip import Strip

from seqtop.state.slo import missed
from seqtop.tui.rendering.line_view import Look
from seqtop.tui.rendering.list_view import MARGIN
from seqtop.tui.rendering.style import PLAIN, Inked, Line, marked
from seqtop.tui.rendering.transparent import Column
from seqtop.tui.screens.sequences import cells
from seqtop.tui.screens.sequences.rows import SequenceRows
from seqtop.tui.ui_state import UiState


class SequenceTable(Column):
    """A row of titles and the rows below it."""

    def __init__(self, feed: UiState) -> None:
        super().__init__()
        self.rows = Rows(feed)
        self.titles = Titles(feed)

    def compose(self) -> ComposeResult:
        yield self.titles
        yield self.rows


class Titles(Inked, can_focus=False):
    """The titles of the columns. A click on one sorts by it."""

    class Clicked(Message):
        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, feed: UiState) -> None:
        super().__init__()
        self._feed = feed

    def render_line(self, y: int) -> Strip:
        sort = self._feed.view.sort
        line = cells.header(self._slots, sort.key, descending=sort.descending)
        return self.paint(((" ", PLAIN), *line), self.size.width, "header")

    def on_click(self, event: events.Click) -> None:
        if key := cells.column_at(self._slots, event.x - 1):
            self.post_message(self.Clicked(key))

    @property
    def _slots(self) -> tuple[cells.Slot, ...]:
        return _arrange(self._feed, self.text_width)


class Rows(SequenceRows):
    """The rows of the sequence table."""

    def __init__(self, feed: UiState) -> None:
        super().__init__(feed)
        self._slots: tuple[cells.Slot, ...] = ()

    def looks(self, y: int, count: int) -> Sequence[Look]:
        slots = _arrange(self._feed, self.text_width)
        if slots != self._slots:
            self._slots = slots
            self._lines.clear()
        return super().looks(y, count)

    def draw(self, seq_id: int) -> Line:
        found = self._feed.sequence(seq_id)
        # Gone from the state since the view was brought up to date: the next frame knows.
        if not found:
            return ()
        now = self._feed.now
        late = missed(self._feed.latencies.slo, *found, now)
        info = self._feed.state.info
        redacted = info is not None and info.redacted
        kin = self.view.tree_position(seq_id)
        line = cells.row(self._slots, *found, now, kin, late, redacted=redacted)
        if self.view.is_hit(seq_id):
            line = marked(line, self.view.search_filter.patterns)
        return line


def _arrange(feed: UiState, width: int) -> tuple[cells.Slot, ...]:
    """What the rows are sorted by is among the columns that stay."""
    return cells.arrange(width - MARGIN, feed.columns, feed.view.sort.key)
