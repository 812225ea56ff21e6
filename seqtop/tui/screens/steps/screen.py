"""The steps on record: what each ran, what it could not run and why, where its time went."""

from collections.abc import Iterable, Sequence

from textual.binding import Binding
from textual.widget import Widget

from seqtop.tui import time_travel
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.feed import Changes, Feed
from seqtop.tui.screens import registry
from seqtop.tui.screens.engine_screen import EngineScreen
from seqtop.tui.screens.steps.detail import StepDetail
from seqtop.tui.screens.steps.step_log import StepLog
from seqtop.tui.screens.steps.table import StepRows, StepTable

TALL = 20
"""From this height on there is room for the detail pane."""


class StepsScreen(EngineScreen):
    """A row per step, the newest at the bottom, and one step in detail."""

    TAB = registry.STEPS
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding(
            "enter", "go", "Go there", id="time.here", tooltip="Go to this step, or this sequence"
        ),
        Binding(
            "d", "toggle_detail", "Detail", id="look.detail", tooltip="Show or hide the detail pane"
        ),
        Binding("tab", "turn", "Members", id="move.next", tooltip="Go to the step's sequences"),
    ]

    def __init__(self, feed: Feed, *, title: str, tabs: Sequence[Tab]) -> None:
        super().__init__(feed, title=title, tabs=tabs)
        self._step_log = StepLog(feed)
        self._table = StepTable(feed, self._step_log)
        self._detail = StepDetail(feed, self._step_log)
        self._detail_wanted: bool | None = None  # None: wherever there is room

    @property
    def step_log(self) -> StepLog:
        """What has been read of the record."""
        return self._step_log

    def body(self) -> Iterable[Widget]:
        yield self._table
        yield self._detail

    def on_mount(self) -> None:
        self._table.rows.focus()

    def on_resize(self) -> None:
        super().on_resize()
        self._place()

    def update(self, frame: Changes) -> None:
        self._table.rows.show()
        self._detail.show(self._table.rows.cursor)

    def on_step_rows_moved(self, _: StepRows.Moved) -> None:
        with self.feed.lock:
            self._detail.show(self._table.rows.cursor)

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
        """Go to the step under the cursor; from its sequences, to the one under the cursor."""
        with self.feed.lock:
            position, timeline = self._table.rows.cursor, self.feed.source.history
            if position is None or timeline is None:
                return
            step = timeline.index[position].step
            frame = self.feed.go(time_travel.to_step(step, near=position), "This step is on show.")
            member = self._detail.members.chosen if self._detail.members.has_focus else None
            if member is not None and member.seq_id in self.feed.state.sequences:
                self.feed.selected, self.feed.chosen = member.seq_id, True
                self.feed.expected = None  # this choice is newer
            self.show(frame)
        if member is not None:
            self.app.switch_mode(registry.SEQUENCES.name)

    def _place(self) -> None:
        wanted = self._detail_wanted
        self._detail.display = self.app.size.height >= TALL if wanted is None else wanted
        with self.feed.lock:
            self._detail.show(self._table.rows.cursor)
