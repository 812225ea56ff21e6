"""A scrollable column of lines that draws only those that changed."""

from collections.abc import Sequence

from textual.strip import Strip

from seqtop.tui.ink import Inked, Line


class Lines(Inked, can_focus=False):
    """Shows the lines it was last given."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 (Textual's own name)
        super().__init__(id=id)
        self.lines_rendered = 0
        self._lines: Sequence[Line] = ()

    def set_lines(self, lines: Sequence[Line]) -> None:
        """Show `lines` from now on."""
        old, self._lines = self._lines, list(lines)
        self.set_height(len(lines))
        top = self.scroll_offset.y
        for y in range(top, top + self.size.height):
            if _at(old, y) != _at(self._lines, y):
                self.refresh_line(y)

    def render_line(self, y: int) -> Strip:
        self.lines_rendered += 1
        return self.paint(_at(self._lines, y + self.scroll_offset.y), self.size.width)

    def on_resize(self) -> None:
        self.set_lines(self._lines)


def _at(lines: Sequence[Line], y: int) -> Line:
    return lines[y] if 0 <= y < len(lines) else ()
