"""The sequence table: one line per sequence, drawn from the feed a line at a time."""

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.strip import Strip

from seqtop.sequence import SequenceStatus
from seqtop.tui.feed import Feed, Frame
from seqtop.tui.ink import PLAIN, Inked, Line
from seqtop.tui.widgets import cells

MARGIN = 1
"""Cells on the left of the columns, for the cursor's mark."""
CURSOR_MARK = "▌"
FOLLOWED_MARK = "▸"


class SequenceTable(Vertical):
    """A row of titles and the rows below it."""

    def __init__(self, feed: Feed) -> None:
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

    def __init__(self, feed: Feed) -> None:
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
        return cells.arrange(self.text_width - MARGIN)


class Rows(Inked, can_focus=True, inherit_bindings=False):
    """The visible part of the view. Only lines that look different are drawn again."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("up,k", "move(-1)", "Up", show=False, id="move.up"),
        Binding("down,j", "move(1)", "Down", show=False, id="move.down"),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False, id="move.page-up"),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False, id="move.page-down"),
        Binding("home,g", "first", "First row", show=False, id="move.first"),
        Binding("end,G", "last", "Last row", show=False, id="move.last"),
    ]

    class Moved(Message):
        """The cursor is on another sequence."""

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self.lines_rendered = 0
        """How many lines have been drawn; tests hold it down."""
        self._feed = feed
        self._slots: tuple[cells.Slot, ...] = ()
        self._lines: dict[int, Line] = {}
        self._drawn: dict[int, tuple[int | None, Line, bool]] = {}
        self._cursor = 0
        self._height = 0

    def show(self, frame: Frame) -> None:
        """Draw what `frame` changed; call it under the feed's lock."""
        if frame.touched is None:
            self._lines.clear()
        else:
            for seq_id in frame.touched:
                self._lines.pop(seq_id, None)
        if frame.ticked:
            self._forget_waiting()
        self.set_height(len(self._feed.view))
        self._keep_selection()
        self.redraw()

    def redraw(self) -> None:
        """Refresh the visible lines that would now look different."""
        if not self.size:
            return
        with self._feed.lock:
            page = self._page()
            for y, seq_id in page.items():
                if self._drawn.get(y) != self._look(seq_id):
                    self.refresh_line(y + self.scroll_offset.y)
            kept = set(page.values())
            if len(self._lines) > 4 * max(len(kept), 64):
                self._lines = {key: self._lines[key] for key in kept if key in self._lines}

    def select(self, seq_id: int | None) -> None:
        """Put the cursor on a sequence and scroll to it."""
        with self._feed.lock:
            changed = seq_id != self._feed.selected
            self._feed.selected = seq_id
            self._feed.chosen = True
            index = self._feed.view.index(seq_id)
            if index is not None:
                self._cursor = index
                self._reveal(index)
            self.redraw()
        if changed:
            self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        self.lines_rendered += 1
        with self._feed.lock:
            ids = self._feed.view.page(y + self.scroll_offset.y, y + self.scroll_offset.y + 1)
            look = self._look(ids[0] if ids else None)
        self._drawn[y] = look
        _, line, is_selected = look
        if not is_selected:
            return self.paint(((" ", PLAIN), *line), self.size.width)
        mark = FOLLOWED_MARK if self._feed.following else CURSOR_MARK
        return self.paint(((mark, "accent"), *line), self.size.width, "cursor")

    def on_resize(self) -> None:
        top, bottom = self.scroll_offset.y, self.scroll_offset.y + self._height
        self._height = self.size.height
        with self._feed.lock:
            index = self._feed.view.index(self._feed.selected)
        if index is not None and top <= index < bottom:  # what was in sight stays in sight
            self._reveal(index)

    def on_click(self, event: events.Click) -> None:
        y = event.y + self.scroll_offset.y
        with self._feed.lock:
            ids = self._feed.view.page(y, y + 1)
        if ids:
            self.select(ids[0])

    def action_move(self, by: int) -> None:
        with self._feed.lock:
            index = self._feed.view.index(self._feed.selected)
            self._go(self._cursor if index is None else index + by)

    def action_page(self, by: int) -> None:
        self.action_move(by * max(self.size.height - 1, 1))

    def action_first(self) -> None:
        with self._feed.lock:
            self._go(0)

    def action_last(self) -> None:
        with self._feed.lock:
            self._go(len(self._feed.view) - 1)

    def _go(self, index: int) -> None:
        index = max(min(index, len(self._feed.view) - 1), 0)
        if ids := self._feed.view.page(index, index + 1):
            self.select(ids[0])

    def _keep_selection(self) -> None:
        """The cursor stays on its sequence; where that is gone, on the row in its place.

        Until somebody chooses, it is on the first row: the one that has run longest.
        """
        feed = self._feed
        index = feed.view.index(feed.selected)
        if index is None or (index > 0 and not feed.chosen):
            last = len(feed.view) - 1
            self._cursor = max(min(self._cursor, last), 0) if feed.chosen else 0
            ids = feed.view.page(self._cursor, self._cursor + 1)
            feed.selected = ids[0] if ids else None
            self.post_message(self.Moved())
            return
        self._cursor = index
        if feed.following:
            self._reveal(index)

    def _reveal(self, index: int) -> None:
        top, height = self.scroll_offset.y, self.size.height
        if index < top:
            self.scroll_to(y=index, animate=False)
        elif height and index >= top + height:
            self.scroll_to(y=index - height + 1, animate=False)

    def _page(self) -> dict[int, int | None]:
        """For every visible line the id of its sequence."""
        top, height = self.scroll_offset.y, self.size.height
        ids: list[int | None] = [*self._feed.view.page(top, top + height)]
        ids += [None] * (height - len(ids))
        return dict(enumerate(ids))

    def _look(self, seq_id: int | None) -> tuple[int | None, Line, bool]:
        """All that decides how a line is drawn."""
        if seq_id is None:
            return None, (), False
        slots = cells.arrange(self.text_width - MARGIN)
        if slots != self._slots:
            self._slots = slots
            self._lines.clear()
        line = self._lines.get(seq_id)
        if line is None:
            found = self._feed.sequence(seq_id)
            # Gone from the state since the view was brought up to date: the next frame knows.
            line = cells.row(slots, *found, self._feed.now) if found else ()
            self._lines[seq_id] = line
        return seq_id, line, seq_id == self._feed.selected

    def _forget_waiting(self) -> None:
        """A second has passed: what has waited has waited longer."""
        for seq_id in self._page().values():
            found = None if seq_id is None else self._feed.state.sequences.get(seq_id)
            if found is not None and found.status == SequenceStatus.WAITING:
                self._lines.pop(found.seq_id, None)
