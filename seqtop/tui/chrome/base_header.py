"""The widget at the top of the screens of all apps, and the badges of a connection."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from seqtop.transport.connection import ConnectionState
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import PLAIN, Line

BADGES = {
    ConnectionState.CONNECTING: ("◌ CONNECTING", "badge-wait"),
    ConnectionState.SYNCING: ("↻ SYNCING", "badge-wait"),
    ConnectionState.LIVE: ("● LIVE", "badge-live"),
    ConnectionState.LOST: ("✗ LOST", "badge-alert"),
    ConnectionState.STOPPED: ("■ STOPPED", "badge-alert"),
    ConnectionState.INCOMPATIBLE: ("≠ INCOMPATIBLE", "badge-alert"),
    ConnectionState.REFUSED: ("✗ REFUSED", "badge-alert"),
    ConnectionState.REPLAY: ("▷ REPLAY", "badge-paused"),
}


class BaseHeader(LineView):
    """The top of the screen: one to three lines, depending on the height of the screen.

    A subclass defines `lines`.
    """

    def __init__(self, lock: threading.RLock) -> None:
        super().__init__(id="header")
        self._lock = lock
        """Protects the data that the lines are made from."""

    def lines(self, width: int) -> Sequence[Line]:
        """Returns the lines from the top, each up to `width` cells. Called under the lock."""
        raise NotImplementedError

    def update(self) -> None:
        """Draws the lines that look different. Called under the lock."""
        if not self.size:
            return
        lines = self.lines(max(self.size.width - 2, 1))
        self.set_lines([((" ", PLAIN), *line) for line in lines[: self.size.height]])

    def on_resize(self) -> None:
        with self._lock:
            self.update()


def gap(width: int) -> int:
    """Returns the cells between the figures of a line of the header."""
    return 2 if width < 110 else 3
