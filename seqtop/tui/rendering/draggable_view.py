"""A line view in which the mouse chooses a column."""

from textual import events

from seqtop.tui.rendering.line_view import LineView


class DraggableView(LineView):
    """A line view that calls `drag_to` where the mouse is pressed, and where it is dragged to."""

    _is_dragged = False

    def drag_to(self, x: int) -> None:
        """Handles the column `x` of the view, which is negative or too large outside of it."""
        raise NotImplementedError

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._is_dragged = True
        self.capture_mouse()
        self.drag_to(event.x)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._is_dragged:
            self.drag_to(event.x)

    def on_mouse_up(self, _: events.MouseUp) -> None:
        self._is_dragged = False
        self.release_mouse()
