"""A sentence below the header while the picture is anything but live and whole."""

from collections.abc import Callable

from seqtop.sanitize import safe_line
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.list_view import LockedSource
from seqtop.tui.rendering.style import PLAIN
from seqtop.tui.rendering.wrapped_text import wrap


class Notice(LineView):
    """Shows what `say` says, on up to three lines; nothing while that is empty."""

    def __init__(self, feed: LockedSource, say: Callable[[], str]) -> None:
        super().__init__(id="notice")
        self._feed = feed
        self._say = say

    def update(self) -> None:
        """Call it under the feed's lock."""
        text = safe_line(self._say())
        if not text and not self.display:
            return
        self.display = bool(text)
        breaks = wrap(text, max(self.app.size.width - 2, 1))[:3] if text else []
        self.styles.height = max(len(breaks), 1)
        self.set_lines([((" " + text[start:end], PLAIN),) for start, end in breaks])

    def on_resize(self) -> None:
        with self._feed.lock:
            self.update()
