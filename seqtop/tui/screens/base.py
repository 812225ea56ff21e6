"""The base class of screens with a tab."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding
from textual.screen import Screen

from seqtop.tui.chrome.tabs import ScreenTabs, Tab
from seqtop.tui.rendering.style import STYLE_CLASSES

SHORT = 16
"""Below this height the tabs are not shown, and the header gives a line to the body."""


class TabbedScreen(Screen[None]):
    """A screen with a line of tabs, `self._tabs`, for all screens of the app."""

    TAB: ClassVar[Tab]
    """The screen's key, name and title."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("tab", "app.focus_next", "Go to the next pane", show=False, id="move.next"),
        Binding("shift+tab", "app.focus_previous", "Go back a pane", show=False, id="move.back"),
        Binding(
            "super+c",
            "screen.copy_text",
            "Copy the selected text",
            show=False,
            key_display="⌘c",
            id="app.copy",
        ),
    ]
    COMPONENT_CLASSES = STYLE_CLASSES

    def __init__(self, tabs: Sequence[Tab]) -> None:
        super().__init__()
        self._tabs = ScreenTabs(tabs, self.TAB.name)

    def on_resize(self) -> None:
        self.set_class(self.app.size.height < SHORT, "-short")
