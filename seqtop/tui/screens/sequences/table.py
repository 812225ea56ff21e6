"""The sequence table: a line of titles, and a row per sequence."""

from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from seqtop.sequence import SequenceStatus
from seqtop.state import RequestState, SequenceState
from seqtop.state.fields import Field, arrange
from seqtop.state.slo import missed
from seqtop.text import format as fmt
from seqtop.tui.navigation import findings_about
from seqtop.tui.rendering.columns import ColumnTitles
from seqtop.tui.rendering.line_view import DrawnLine
from seqtop.tui.rendering.list_view import MARGIN
from seqtop.tui.rendering.style import PLAIN, Line, highlighted
from seqtop.tui.screens.empty_hint import EmptyHint
from seqtop.tui.screens.sequence_rows import SequenceRows
from seqtop.tui.screens.sequences import cells
from seqtop.tui.ui_state import Changes, UiState

WARN_TITLE = "Warn"
"""The title of the column of findings, left of the others. It is not one of `FIELDS`: a finding is
a result of the checks, which no state of an engine has."""
_WARN_WIDTH = len(WARN_TITLE) + 1


class SequenceTable(Vertical):
    """The titles and the rows below them, or the reason why there are none."""

    def __init__(self, ui: UiState) -> None:
        super().__init__()
        self.rows = Rows(ui)
        self.titles = Titles(ui)
        self._hint = EmptyHint(ui)

    def compose(self) -> ComposeResult:
        yield self.titles
        yield self.rows
        yield self._hint

    def show(self, changes: Changes) -> None:
        """Draws the changes. Called under the lock of the `UiState`."""
        if self.rows.update_findings() or changes.touched is None:
            self.titles.refresh_changed()  # not in vain if the screen was hidden before
        self.rows.show(changes)
        self._hint.update()


class Titles(ColumnTitles):
    """The titles of the columns. A click on a title sorts by its column."""

    class Clicked(Message):
        """A title was clicked."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, ui: UiState) -> None:
        super().__init__(self._line)
        self._ui = ui

    def on_click(self, event: events.Click) -> None:
        left = _warn_width(self._ui)
        columns = _columns_of(self._ui, self.text_width - MARGIN)
        if event.x >= MARGIN + left and (key := cells.column_at(columns, event.x - MARGIN - left)):
            self.post_message(self.Clicked(key))

    def _line(self, width: int) -> Line:
        sort = self._ui.view.sort
        columns = _columns_of(self._ui, width)
        titles = cells.header(columns, sort.key, descending=sort.descending)
        return (
            ((f"{WARN_TITLE:<{_WARN_WIDTH}}", PLAIN), *titles) if _warn_width(self._ui) else titles
        )


class Rows(SequenceRows):
    """The rows of the sequence table."""

    def __init__(self, ui: UiState) -> None:
        super().__init__(ui)
        self._columns: tuple[Field, ...] = ()
        self._lines_by_key: dict[int, Line] = {}
        """The visible rows. A row is made again when its sequence changes; an unfinished one
        also once a second, because its times grow."""
        self._findings_shown: tuple[int, int] | None = None
        """The number of findings and the position for which the rows were made, if any."""

    def show(self, changes: Changes) -> None:
        if changes.touched is None:
            self._lines_by_key.clear()
        else:
            for key in self._lines_by_key.keys() & changes.touched:  # iterates over the smaller set
                del self._lines_by_key[key]
        if changes.ticked:
            self._drop_unfinished()
        super().show(changes)
        lines = self._lines_by_key
        self._lines_by_key = {key: lines[key] for key in self.visible_keys() if key in lines}

    def update_findings(self) -> bool:
        """Makes the rows again if their numbers of findings may differ; returns whether so."""
        checker = self._ui.checks.checker
        now = None
        if checker is not None and checker.num_findings:
            now = checker.num_findings, self._ui.time_travel.position if self._ui.paused else -1
        before, self._findings_shown = self._findings_shown, now
        if before == now:
            return False
        self._lines_by_key.clear()
        return True

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        columns = _columns_of(self._ui, self.text_width - MARGIN)
        if columns != self._columns:
            self._columns = columns
            self._lines_by_key.clear()
        return super().visible_lines(top, count)

    def line(self, key: int) -> Line:
        line = self._lines_by_key.get(key)
        if line is None:
            line = self._lines_by_key[key] = self._make_line(key)
        return line

    def _drop_unfinished(self) -> None:
        """Removes the rows whose times grow without a change of their sequences."""
        for key in list(self._lines_by_key):
            found = self._ui.state.sequences.get(key)
            if found is not None and not SequenceStatus.is_finished(found.status):
                del self._lines_by_key[key]

    def _make_line(self, key: int) -> Line:
        found = self._ui.sequence(key)
        if not found:  # removed since the view was last updated; the next frame has no such row
            return ()
        now = self._ui.state.time
        late = missed(self._ui.latencies.slo, *found, now)
        info = self._ui.state.info
        redacted = info is not None and info.redacted
        missing = info.not_available if info is not None else ()
        position = self.view.tree_position(key)
        line = cells.row(
            self._columns, *found, now, position, late, redacted=redacted, not_available=missing
        )
        if self.view.is_hit(key):
            line = highlighted(line, self.view.search_filter.patterns)
        return (*self._warn_cell(*found), *line) if _warn_width(self._ui) else line

    def _warn_cell(self, request: RequestState, sequence: SequenceState) -> Line:
        """Returns the number of findings about a sequence, in the style of the severest."""
        found = findings_about(self._ui, sequence)
        if not found:
            return ((" " * _WARN_WIDTH, PLAIN),)
        is_error = any(each.finding.severity == "error" for each in found)
        checker = self._ui.checks.checker
        more = "+" if checker is not None and checker.is_index_full else ""
        text = f"{fmt.count(len(found))}{more}".rjust(_WARN_WIDTH - 1)
        return ((f"{text} ", "alert" if is_error else "waiting"),)


def _warn_width(ui: UiState) -> int:
    """Returns the cells of the column of findings: 0 while there are none."""
    return _WARN_WIDTH if ui.checks.checker is not None and ui.checks.checker.num_findings else 0


def _columns_of(ui: UiState, width: int) -> tuple[Field, ...]:
    return arrange(width - _warn_width(ui), ui.preferences.columns, ui.view.sort.key)
