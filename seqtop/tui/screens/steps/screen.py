"""The steps screen: the sequences, the waits and the time of each step in the history."""

from collections.abc import Iterable, Sequence

from textual.binding import Binding
from textual.widget import Widget

from seqtop.tui import seek
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.screens.engine_screen import EngineScreen
from seqtop.tui.screens.steps import TAB
from seqtop.tui.screens.steps.cells import COLUMNS
from seqtop.tui.screens.steps.detail import StepDetail
from seqtop.tui.screens.steps.step_log import StepLog
from seqtop.tui.screens.steps.table import StepRows, StepTable
from seqtop.tui.ui_state import Changes, UiState

TALL = 20
"""From this height on, the detail pane is shown."""


class StepsScreen(EngineScreen):
    """A row for each step, the newest at the bottom, and one step in detail."""

    TAB = TAB
    WORDS = tuple((column.title, column.help) for column in COLUMNS)
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding(
            "enter", "go", "Go there", id="time.here", tooltip="Go to this step, or this sequence"
        ),
        Binding(
            "d", "toggle_detail", "Detail", id="look.detail", tooltip="Show or hide the detail pane"
        ),
        Binding("tab", "turn", "Members", id="move.next", tooltip="Go to the step's sequences"),
    ]

    def __init__(self, ui: UiState, *, title: str, tabs: Sequence[Tab]) -> None:
        super().__init__(ui, title=title, tabs=tabs)
        self._step_log = StepLog(ui)
        self._table = StepTable(ui, self._step_log)
        self._detail = StepDetail(ui, self._step_log)
        self._detail_wanted: bool | None = None  # `None` shows it where there is room

    @property
    def step_log(self) -> StepLog:
        """The steps that have been read from the history."""
        return self._step_log

    def body(self) -> Iterable[Widget]:
        yield self.panel(self._table, TAB.title, {"time.here": "go there"}, is_main=True)
        keys = {"move.next": "its sequences", "look.detail": "hide"}
        yield self.panel(self._detail, "Step", keys)

    def on_mount(self) -> None:
        self._table.rows.focus()

    def on_resize(self) -> None:
        super().on_resize()
        self._place()

    def update(self, changes: Changes) -> None:
        self._table.show()
        self._detail.show(self._table.rows.cursor)

    def cursor_text(self) -> str:
        return self._table.rows.cursor_text()

    def on_step_rows_moved(self, _: StepRows.Moved) -> None:
        with self.ui.lock:
            self._detail.show(self._table.rows.cursor)
            self.show_place()

    def action_turn(self) -> None:
        if self._table.rows.has_focus and self._detail.display:
            self._detail.members.focus()
        else:
            self._table.rows.focus()

    def action_toggle_detail(self) -> None:
        self._detail_wanted = not self._detail.display
        if not self._detail_wanted:
            self._table.rows.focus()
        self._place()

    def action_go(self) -> None:
        """Goes to the step under the cursor, or to the sequence under the cursor of the detail."""
        with self.ui.lock:
            position, timeline = self._table.rows.cursor, self.ui.source.history
            if position is None:
                return
            step = timeline.index[position].step
            self.ui.time_travel.go(seek.to_step(step, near=position), "This step is on display.")
            self.ui.update()
            member = self._detail.members.chosen if self._detail.members.has_focus else None
            if member is not None and member.seq_id in self.ui.state.sequences:
                self.ui.cursor.seq_id, self.ui.cursor.set_by_user = member.seq_id, True
                self.ui.cursor.pending = None  # this selection is newer
            self.show(self.ui.take_changes())
        if member is not None:
            self.open_table()

    def _place(self) -> None:
        wanted = self._detail_wanted
        self._detail.display = self.app.size.height >= TALL if wanted is None else wanted
        with self.ui.lock:
            self._detail.show(self._table.rows.cursor)
