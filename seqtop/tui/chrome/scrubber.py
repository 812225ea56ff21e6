"""A line that shows where on record the picture is; the mouse drags it elsewhere."""

from textual import events
from textual.message import Message

from seqtop.tui.feed import Feed
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import Line
from seqtop.tui.time_travel import bounds

TALL = 26
"""From this height on there is room for it."""
_MARGIN = 1


class Scrubber(LineView):
    """`├────●───┤`, from the oldest moment on record to the newest; shown with a held picture."""

    class Moved(Message):
        """Somebody wants to see the moment at a share of the recorded time."""

        def __init__(self, share: float) -> None:
            super().__init__()
            self.share = share

    def __init__(self, feed: Feed) -> None:
        super().__init__(id="scrubber")
        self._feed = feed
        self._held = False

    def update(self) -> None:
        """Call it under the feed's lock."""
        timeline = self._feed.source.history
        held = self._feed.paused or self._feed.replay is not None
        self.display = timeline is not None and held and self.app.size.height >= TALL
        if timeline is None or not self.display:
            return
        begin, end = bounds(timeline)
        length = end - begin
        here = (self._feed.now - begin) / length if length > 0 else 1.0
        self.set_lines([track(here, self.app.size.width - 2 * _MARGIN)])

    def on_resize(self) -> None:
        with self._feed.lock:
            self.update()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._held = True
        self.capture_mouse()
        self._move(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._held:
            self._move(event.x)

    def on_mouse_up(self, _: events.MouseUp) -> None:
        self._held = False
        self.release_mouse()

    def _move(self, x: int) -> None:
        last = max(self.app.size.width - 2 * _MARGIN - 1, 1)
        self.post_message(self.Moved(min(max((x - _MARGIN) / last, 0.0), 1.0)))


def track(share: float, width: int) -> Line:
    """A line of `width` cells with a knob at `share` of it."""
    cells = ["├", *"─" * max(width - 2, 0), "┤"]
    share = min(max(share, 0.0), 1.0) if share == share else 0.0
    at = round(share * (len(cells) - 1))
    before, after = "".join(cells[:at]), "".join(cells[at + 1 :])
    return ((" " * _MARGIN, ""), (before, "computed"), ("●", "accent"), (after, "track"))
