"""The base class of screens that show one engine."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar

from textual.app import ComposeResult

from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.tui import seek
from seqtop.tui.chrome.header import Header
from seqtop.tui.chrome.notice import Notice, notice_text
from seqtop.tui.chrome.overview_charts import Charts
from seqtop.tui.chrome.scrubber import Scrubber
from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.chrome.tour_panel import TourPanel
from seqtop.tui.screens.base import TabbedScreen
from seqtop.tui.ui_state import EVERYTHING, Changes, UiState

CONTROLS = frozenset({"submit", "abort"})
"""Actions that send a command to the engine."""
REPEATS = frozenset({"repeat_seek(-1)", "repeat_seek(1)"})
"""Actions that repeat a search for a condition."""
_TABLE = "sequences"
"""The name of the tab with the sequence table."""


class EngineScreen(TabbedScreen):
    """A screen of one engine. A subclass draws its body in `update`.

    Selection, filter and pause are in the `UiState`, so all screens share them.
    """

    BLANK = True  # what is on it covers it: Textual need not style each line of it

    _by_tab: ClassVar[dict[Tab, type[EngineScreen]]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "TAB" in vars(cls):  # a class for several screens has none
            cls._by_tab[cls.TAB] = cls

    @classmethod
    def of(cls, tab: Tab) -> type[EngineScreen]:
        """Returns the class of the screen with `tab`, and imports its module."""
        import_module(f"seqtop.tui.screens.{tab.name}.screen")
        return cls._by_tab[tab]

    def __init__(self, ui: UiState, *, title: str, tabs: Sequence[Tab]) -> None:
        header = Header(ui, title=title)
        notice = Notice(ui, lambda: notice_text(ui))
        scrubber = Scrubber(ui)
        super().__init__(tabs, header, notice, scrubber)
        self.ui = ui
        self._header = header
        self._notice = notice
        self._scrubber = scrubber
        self._tour = TourPanel(ui, lambda: getattr(self.app, "tour", None))
        self._update_footer()

    def compose(self) -> ComposeResult:
        *widgets, footer = super().compose()
        yield from widgets
        yield self._tour
        yield footer

    def on_mount(self) -> None:
        self.call_after_refresh(self.show_all)  # the sizes of its parts are known only then

    def update(self, changes: Changes) -> None:
        """Draws changes in the body. Called under the lock of `ui`."""
        raise NotImplementedError

    def show(self, changes: Changes) -> None:
        """Draws changes in all parts of the screen. Called under the lock of `ui`."""
        travel = self.ui.time_travel
        if travel.key_message and not travel.paused:
            self.notify(safe_line(travel.key_message), timeout=4, markup=False)
            travel.key_message = ""
        self._update_footer()
        self._header.update()
        self._notice.update()
        self._scrubber.update()
        self._tour.update()
        self.update(changes)
        self.show_place()

    def show_place(self) -> None:
        """Shows the place of the cursor and the time. Called under the lock of `ui`."""
        # The end of the last step: a clock would draw a frame each second while nothing happens.
        end = self.ui.state.blocked.until
        clock = fmt.clock(end, 0) if end else ""
        self._footer.update_text("   ".join(filter(None, (self.cursor_text(), clock))))

    def _update_footer(self) -> None:
        info = self.ui.newest.info
        # Unless the engine has said that it does not, it may accept commands.
        may_control = self.ui.engine is not None and (info is None or info.control)
        hidden = frozenset() if may_control else CONTROLS
        self._footer.update_keys(
            hidden if self.ui.condition_finder.condition else hidden | REPEATS,
            "Resume" if self.ui.paused else "Pause",
        )

    def cursor_text(self) -> str:
        """Returns which row or block the cursor is on, for the footer; empty without a cursor.

        Called under the lock of `ui`.
        """
        return ""

    def show_all(self) -> None:
        """Draws everything again, after a change of selection, preferences or size."""
        with self.ui.lock:
            self.show(EVERYTHING)

    def on_scrubber_moved(self, message: Scrubber.Moved) -> None:
        self.go_to(seek.to_share(message.share))

    def on_charts_time_chosen(self, message: Charts.TimeChosen) -> None:
        self.go_to(seek.to_time(message.time))

    def go_to(self, wanted: seek.Seek, otherwise: str = "") -> None:
        """Pauses and shows the position that `wanted` finds, or else the message `otherwise`."""
        with self.ui.lock:
            self.ui.time_travel.go(wanted, otherwise)
            self.ui.update()
            self.show(self.ui.take_changes())

    def open_table(self) -> None:
        """Switches to the screen with the sequence table."""
        self.app.switch_mode(_TABLE)

    def resume(self) -> None:
        with self.ui.lock:
            self.ui.update(redraw=True)  # nothing was drawn while a dialog was open
            self.show(self.ui.take_changes())
