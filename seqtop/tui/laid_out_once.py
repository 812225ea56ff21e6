"""Layout of a screen once for each size."""

from typing import TYPE_CHECKING

from textual import on
from textual.events import Resize
from textual.geometry import Size
from textual.message_pump import MessagePump


class LaidOutOnce(MessagePump):
    """A base class of screens that are not laid out again for a size that they have.

    Textual sends a screen the size that its own layout has given it, and lays it out and draws it
    again for that, and with a dialog the screens below it: six times at a start rather than three.
    """

    if TYPE_CHECKING:
        outer_size: Size  # of a widget

    @on(Resize)
    def _keep_layout(self, event: Resize) -> None:
        if event.size == self.outer_size:
            event.prevent_default()  # Textual's own handler; others have been called
