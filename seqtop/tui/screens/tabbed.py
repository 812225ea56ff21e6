"""What every screen with a tab has in common."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import ClassVar

from textual.screen import Screen

from seqtop.tui.ink import INK_CLASSES
from seqtop.tui.kept import Kept
from seqtop.tui.widgets.screen_tabs import ScreenTabs, Tab

SHORT = 16
"""Below this height the tabs are not shown, and the header gives a line to the body."""


class TabbedScreen(Kept, Screen[None]):
    """A screen of the app's, with the line of tabs for all of them in `self._tabs`."""

    NAME: ClassVar[str]
    """What the app calls it: the mode to switch to, and the id of its key in the help."""
    TITLE: ClassVar[str]
    """What its tab says."""
    KEY: ClassVar[str] = ""
    """The key that leads to it, where that is not its number."""

    COMPONENT_CLASSES = INK_CLASSES

    def __init__(self, tabs: Iterable[type[TabbedScreen]]) -> None:
        super().__init__()
        numbers = count(1)
        self._tabs = ScreenTabs(
            [Tab(each.KEY or str(next(numbers)), each.NAME, each.TITLE) for each in tabs],
            self.NAME,
        )

    def on_resize(self) -> None:
        self.set_class(self.app.size.height < SHORT, "-short")
