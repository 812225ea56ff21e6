"""A column of any number of lines, of which only those in sight are ever made."""

from textual.binding import Binding
from textual.containers import ScrollableContainer
from textual.strip import Strip

from seqtop.tui.rendering.style import Inked, Line
from seqtop.tui.ui_state import UiState


class LongLines(Inked, can_focus=True, inherit_bindings=False):
    """A subclass says how many lines there are and makes each when it is asked for."""

    # It never scrolls sideways: those keys go through time, here as elsewhere.
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        binding
        for binding in ScrollableContainer.BINDINGS
        if isinstance(binding, Binding) and binding.key not in {"left", "right"}
    ]

    def __init__(self, feed: UiState, *, id: str, title: str) -> None:  # noqa: A002 (Textual's name)
        super().__init__(id=id)
        self.border_title = title
        self.lines_rendered = 0
        self._feed = feed
        self._drawn: dict[int, Line] = {}

    @property
    def num_lines(self) -> int:
        raise NotImplementedError

    def line_at(self, index: int) -> Line:
        """How a line looks; asked under the feed's lock."""
        raise NotImplementedError

    def update(self) -> None:
        """Draw the lines in sight that look different. Call it under the feed's lock."""
        if not self.outer_size:
            return
        self.set_height(self.num_lines)
        for y in range(self.size.height):
            if self._drawn.get(y) != self._line(y):
                self.refresh_line(y + self.scroll_offset.y)

    def render_line(self, y: int) -> Strip:
        self.lines_rendered += 1
        with self._feed.lock:
            line = self._drawn[y] = self._line(y)
        return self.paint(line, self.size.width)

    def on_resize(self) -> None:
        with self._feed.lock:
            self.update()

    def _line(self, y: int) -> Line:
        index = y + self.scroll_offset.y
        return self.line_at(index) if index < self.num_lines else ()
