"""What every screen that shows the engine has in common."""

from textual.binding import Binding
from textual.screen import Screen

from seqtop.tui.feed import EVERYTHING, Feed, Frame
from seqtop.tui.ink import INK_CLASSES


class LiveScreen(Screen[None]):
    """A screen that is told what changed, at most thirty times a second."""

    COMPONENT_CLASSES = INK_CLASSES
    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("tab", "app.focus_next", "Go to the next pane", show=False, id="move.next"),
        Binding("shift+tab", "app.focus_previous", "Go back a pane", show=False, id="move.back"),
    ]

    def __init__(self, feed: Feed) -> None:
        super().__init__()
        self.feed = feed

    def show(self, frame: Frame) -> None:
        """Draw what `frame` changed. The app calls it under the feed's lock."""
        raise NotImplementedError

    def show_all(self) -> None:
        """Draw everything anew, after something other than the engine changed it."""
        with self.feed.lock:
            self.show(EVERYTHING)

    def on_screen_resume(self) -> None:
        self.show_all()
