"""The base classes of the parts of the detail pane."""

from abc import abstractmethod

from seqtop.tui.rendering.line_view import SCROLL_BINDINGS, LineView
from seqtop.tui.ui_state import UiState


class DetailPane(LineView):
    """A titled pane with facts about the selected sequence."""

    def __init__(self, ui: UiState, *, id: str, title: str) -> None:  # noqa: A002 (Textual's name)
        super().__init__(id=id)
        self.border_title = title
        self._ui = ui

    @abstractmethod
    def update(self) -> None:
        """Draws the lines that look different. Called under the lock of `ui`."""

    def update_locked(self) -> None:
        """Calls `update` under the lock of `ui`."""
        with self._ui.lock:
            self.update()

    def on_resize(self) -> None:
        self.update_locked()


class ScrollablePane(DetailPane, can_focus=True, inherit_bindings=False):
    """A pane that the user can focus and scroll up and down."""

    BINDINGS = SCROLL_BINDINGS
