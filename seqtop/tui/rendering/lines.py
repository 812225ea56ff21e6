"""A scrollable column of lines that draws only those that changed."""

from collections.abc import Sequence

from seqtop.tui.rendering.line_view import LineView, Look
from seqtop.tui.rendering.style import Line


class Lines(LineView, can_focus=False):
    """Shows the lines it was last given."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 (Textual's own name)
        super().__init__(id=id)
        self._lines: Sequence[Line] = ()

    def set_lines(self, lines: Sequence[Line]) -> None:
        """Show `lines` from now on."""
        self._lines = list(lines)
        self.set_height(len(lines))
        self.redraw()

    def looks(self, y: int, count: int) -> Sequence[Look]:
        top = y + self.scroll_offset.y
        shown = self._lines[max(top, 0) : max(top + count, 0)]
        return [("", line) for line in shown] + [("", ())] * (count - len(shown))

    def on_resize(self) -> None:
        self.set_lines(self._lines)
