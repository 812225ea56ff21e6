"""The sequence table: a line of titles, and a row per sequence."""

from collections.abc import Sequence

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message

from seqtop.sequence import SequenceStage
from seqtop.state import SequenceState
from seqtop.state.fields import FIELDS, Field, arrange, sequence_name, stage
from seqtop.state.grouped_rows import GroupedRows
from seqtop.state.latency import MAX_TIMES
from seqtop.state.ordering import SequenceView
from seqtop.state.slo import missed
from seqtop.text import format as fmt
from seqtop.tui.navigation import findings_about
from seqtop.tui.rendering.line_view import DrawnLine
from seqtop.tui.rendering.list_view import MARGIN, ColumnTitles, ListView
from seqtop.tui.rendering.sequence_label import shared_head
from seqtop.tui.rendering.style import PLAIN, Line, highlighted
from seqtop.tui.screens.empty_hint import EmptyHint
from seqtop.tui.screens.sequence_rows import SequenceRows
from seqtop.tui.screens.sequences import cells
from seqtop.tui.ui_state import UiState

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
        self.hint = EmptyHint(ui, "Esc clears the filter, / edits it.")

    def compose(self) -> ComposeResult:
        yield self.titles
        yield self.rows
        yield self.hint


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
        if (key := self._key_at(event.x)) is not None:
            self.post_message(self.Clicked(key))

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Explains the column under the mouse."""
        key = self._key_at(event.x)
        self.tooltip = None if key is None else f"{FIELDS[key].title}: {FIELDS[key].help}"

    def _key_at(self, x: int) -> str | None:
        """Returns the key of the column at cell `x`."""
        left = MARGIN + _warn_width(self._ui)
        columns = _columns_of(self._ui, self.text_width - MARGIN)
        return cells.column_at(columns, x - left) if x >= left else None

    def _line(self, width: int) -> Line:
        sort = self._ui.view.sort
        columns = _columns_of(self._ui, width)
        titles = cells.header(
            columns, sort.key, descending=sort.descending, by=self._ui.view.grouped.by
        )
        return (
            ((f"{WARN_TITLE:<{_WARN_WIDTH}}", PLAIN), *titles) if _warn_width(self._ui) else titles
        )


class Rows(SequenceRows, inherit_bindings=False):
    """The rows of the sequence table, below those of groups if it is grouped."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        *(
            binding
            for binding in ListView.BINDINGS
            if isinstance(binding, Binding) and binding.id != "move.last"
        ),
        Binding("end", "last", "Last row", show=False, id="move.last"),  # G groups
    ]

    _head = 0
    """The length of the beginning of the names that all visible rows share, and that is cut."""

    @property
    def view(self) -> SequenceView | GroupedRows:
        view = self._ui.view
        return view.grouped if view.grouped.by else view

    @property
    def is_on_group(self) -> bool:
        """True if the cursor is on the row of a group."""
        with self._ui.lock:
            row = self._ui.cursor.seq_id
            return row is not None and self._ui.view.grouped.group(row) is not None

    def select(self, key: int | None) -> None:
        with self._ui.lock:
            if key is not None:
                self._ui.view.grouped.reveal(key)
        super().select(key)

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        ui = self._ui
        with ui.lock:
            columns = _columns_of(ui, self.text_width - MARGIN)
            room = next((column.width for column in columns if column.key == "request"), 0)
            pairs = map(ui.sequence, self.page(top, top + count))
            names = [sequence_name(*pair) for pair in pairs if pair is not None]
            self._head = shared_head(names, room) if room else 0
        return super().visible_lines(top, count)

    def line(self, key: int) -> Line:
        ui = self._ui
        if (group := ui.view.grouped.group(key)) is not None:
            columns = _columns_of(ui, self.text_width - MARGIN)
            stats = ui.state.stats
            line = cells.group_row(
                columns,
                group,
                None if stats is None else stats.num_used_blocks,
                is_unfolded=ui.view.grouped.is_unfolded(key),
            )
            return ((" " * _WARN_WIDTH, PLAIN), *line) if _warn_width(ui) else line
        pair = ui.sequence(key)
        if pair is None:  # removed since the view was last updated; the next frame has no such row
            return ()
        now, info = ui.now, ui.state.info
        line = cells.row(
            _columns_of(ui, self.text_width - MARGIN),
            *pair,
            now,
            ui.view.tree_position(key),
            missed(ui.latencies.slo, *pair, now),
            redacted=info is not None and info.redacted,
            is_stale=ui.is_stale,
            not_available=info.not_available if info is not None else (),
            outliers=ui.outliers(),
            pace=_pace(ui, pair[1]),
            head=self._head,
        )
        if key in ui.view.hits:
            line = highlighted(line, ui.view.hits.filter.patterns)
        return (*self._warn_cell(pair[1]), *line) if _warn_width(ui) else line

    def _warn_cell(self, sequence: SequenceState) -> Line:
        """Returns the number of findings about a sequence, in the style of the severest."""
        findings = findings_about(self._ui, sequence)
        if not findings:
            return ((" " * _WARN_WIDTH, PLAIN),)
        is_error = any(located.finding.severity == "error" for located in findings)
        checker = self._ui.checks.checker
        more = "+" if checker is not None and checker.is_index_full else ""
        text = f"{fmt.count(len(findings))}{more}".rjust(_WARN_WIDTH - 1)
        return ((f"{text} ", "alert" if is_error else "waiting"),)


def _pace(ui: UiState, sequence: SequenceState) -> cells.Pace | None:
    """Returns the pace of a sequence that decodes; `None` for others, and while it is unknown."""
    if stage(sequence) is not SequenceStage.DECODE:
        return None
    gaps = ui.latencies.gaps(sequence.seq_id, MAX_TIMES, ui.state.time)
    return cells.Pace(gaps, ui.usual_gap) if len(gaps) > 1 else None


def _warn_width(ui: UiState) -> int:
    """Returns the cells of the column of findings: 0 while there are none."""
    return _WARN_WIDTH if ui.checks.checker is not None and ui.checks.checker.num_findings else 0


def _columns_of(ui: UiState, width: int) -> tuple[Field, ...]:
    return arrange(width - _warn_width(ui), ui.preferences.columns, ui.view.sort.key)
