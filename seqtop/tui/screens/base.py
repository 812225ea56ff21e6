"""The base class of screens with a tab."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widget import Widget

from seqtop.tui.chrome.footer import KeyFooter
from seqtop.tui.chrome.tabs import ScreenTabs, Tab
from seqtop.tui.keymap import Notes
from seqtop.tui.rendering.style import STYLE_CLASSES

SHORT = 16
"""Below this height the tabs are not shown, and the header gives a line to the body."""


class TabbedScreen(Screen[None]):
    """A screen with a header, a line of tabs for all screens of the app, a body and a footer.

    A subclass gives its `TAB` and yields its widgets from `body`.

    Args:
        tabs: The tabs of all screens of the app.
        header: The widget above the tabs.
        notices: Widgets between the tabs and the body.
    """

    TAB: ClassVar[Tab]
    """The screen's key, name and title."""
    WORDS: ClassVar[Notes] = ()
    """Titles and words that are on the screen, and their meanings, for the help."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("tab", "app.focus_next", "Go to the next pane", show=False, id="move.next"),
        Binding("shift+tab", "app.focus_previous", "Go back a pane", show=False, id="move.back"),
        Binding(
            "super+c",
            "screen.copy_text",
            "Copy the selected text",
            show=False,
            key_display="⌘c" if sys.platform == "darwin" else "Super c",
            id="app.copy",
        ),
    ]
    COMPONENT_CLASSES = STYLE_CLASSES

    def __init__(self, tabs: Sequence[Tab], header: Widget, *notices: Widget) -> None:
        super().__init__()
        self._above_body = (header, ScreenTabs(tabs, self.TAB.name), *notices)
        self._footer = KeyFooter()

    def compose(self) -> ComposeResult:
        yield from self._above_body
        yield from self.body()
        yield self._footer

    def body(self) -> Iterable[Widget]:
        """Returns the widgets between the tabs and the footer."""
        raise NotImplementedError

    def on_resize(self) -> None:
        self.set_class(self.app.size.height < SHORT, "-short")
