"""A line that shows the position in the history; the mouse can drag it."""

from textual.message import Message

from seqtop.tui.rendering.line_view import DraggableView
from seqtop.tui.rendering.style import Line
from seqtop.tui.seek import bounds
from seqtop.tui.ui_state import UiState

TALL = 26
"""From this height on, the line is shown."""
_MARGIN = 1


class Scrubber(DraggableView):
    """A line such as `├────●───┤` for the history; shown while paused or in a recording."""

    class Moved(Message):
        """The user has dragged the knob to a share of the recorded time, from 0 to 1."""

        def __init__(self, share: float) -> None:
            super().__init__()
            self.share = share

    def __init__(self, ui: UiState) -> None:
        super().__init__(id="scrubber")
        self._ui = ui

    def update(self) -> None:
        """Draws the line. Called under the lock of `ui`."""
        timeline = self._ui.source.history
        self.display = self._ui.time_travel.has_position and self.app.size.height >= TALL
        if not self.display:
            return
        begin, end = bounds(timeline)
        length = end - begin
        here = (self._ui.state.time - begin) / length if length > 0 else 1.0
        self.set_lines([track(here, self.app.size.width - 2 * _MARGIN)])

    def on_resize(self) -> None:
        with self._ui.lock:
            self.update()

    def drag_to(self, x: int) -> None:
        last = max(self.app.size.width - 2 * _MARGIN - 1, 1)
        self.post_message(self.Moved(min(max((x - _MARGIN) / last, 0.0), 1.0)))


def track(share: float, width: int) -> Line:
    """Returns a line of `width` cells with the knob at `share`, from 0 to 1."""
    cells = ["├", *"─" * max(width - 2, 0), "┤"]
    share = min(max(share, 0.0), 1.0) if share == share else 0.0
    at = round(share * (len(cells) - 1))
    before, after = "".join(cells[:at]), "".join(cells[at + 1 :])
    return ((" " * _MARGIN, ""), (before, "computed"), ("●", "accent"), (after, "track"))
