"""A sentence below the header, shown unless the display is live."""

from collections.abc import Callable

from seqtop.sanitize import safe_line
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.list_view import LockedSource
from seqtop.tui.rendering.style import PLAIN
from seqtop.tui.rendering.wrapped_text import wrap


class Notice(LineView):
    """Shows the text that `sentence` returns, on up to three lines; hidden while it is empty."""

    def __init__(self, ui: LockedSource, sentence: Callable[[], str]) -> None:
        super().__init__(id="notice")
        self._ui = ui
        self._sentence = sentence

    def update(self) -> None:
        """Call it under the source's lock."""
        text = safe_line(self._sentence())
        if not text and not self.display:
            return
        self.display = bool(text)
        breaks = wrap(text, max(self.app.size.width - 2, 1))[:3] if text else []
        self.styles.height = max(len(breaks), 1)
        self.set_lines([((" " + text[start:end], PLAIN),) for start, end in breaks])

    def on_resize(self) -> None:
        with self._ui.lock:
            self.update()
