"""The panel with the text of a stop of the tour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from textual.content import Content

from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.list_view import LockedSource
from seqtop.tui.rendering.style import PLAIN
from seqtop.tui.rendering.wrapped_text import wrap


class Explained(Protocol):
    """A title, a text and the key that goes on; `seqtop.tui.tour.Tour` is one."""

    @property
    def title(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def next_key(self) -> str: ...


class TourPanel(LineView):
    """Shows what `tour` returns, above the line of keys; hidden if that is `None`."""

    def __init__(self, ui: LockedSource, tour: Callable[[], Explained | None]) -> None:
        super().__init__(id="tour")
        self._ui = ui
        self._tour = tour
        self.display = False

    def update(self) -> None:
        """Draws the text. Called under the lock of `ui`."""
        tour = self._tour()
        if tour is None and not self.display:
            return
        self.display = tour is not None
        if tour is None:
            return
        key, _, words = tour.next_key.partition(" ")
        self.border_title = tour.title
        self.border_subtitle = Content.assemble((key, "bold $footer-key-foreground"), f" {words}")
        text, width = tour.text, max(self.app.size.width - 4, 1)
        lines = [((text[start:end], PLAIN),) for start, end in wrap(text, width)]
        self.styles.height = len(lines) + 2
        self.set_lines(lines)

    def on_resize(self) -> None:
        with self._ui.lock:
            self.update()
