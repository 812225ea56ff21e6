"""The line of tabs: the screens with their keys, the current one highlighted."""

from collections.abc import Sequence
from typing import NamedTuple

from textual import events

from seqtop.tui.rendering.line_view import DrawnLine, LineView
from seqtop.tui.rendering.style import PLAIN, Line


class Tab(NamedTuple):
    """The tab of a screen."""

    key: str
    name: str
    """Name of the screen's mode, and id of its key in the help."""
    title: str

    @property
    def label(self) -> str:
        return f" {self.key} {self.title} "


class ScreenTabs(LineView):
    """The tabs of all screens, with that of the screen `shown` highlighted. A click switches."""

    def __init__(self, tabs: Sequence[Tab], shown: str) -> None:
        super().__init__()
        self._tabs = tabs
        self._shown = shown

    def visible_lines(self, top: int, count: int) -> Sequence[DrawnLine]:
        return [(self._line(), "header")][:count]

    def on_click(self, event: events.Click) -> None:
        right = 0
        for tab in self._tabs:
            right += len(tab.label)
            if event.x < right:
                self.app.switch_mode(tab.name)
                return

    def _line(self) -> Line:
        return tuple((tab.label, "tab" if tab.name == self._shown else PLAIN) for tab in self._tabs)
