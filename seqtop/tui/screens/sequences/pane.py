"""The base classes of the parts of the detail pane."""

from abc import abstractmethod
from collections.abc import Sequence

from textual.message import Message

from seqtop.tui.rendering.line_view import SCROLL_BINDINGS, LineView
from seqtop.tui.rendering.style import Line
from seqtop.tui.ui_state import UiState

_MOST_SPARE = 2
"""The most lines that a pane leaves blank rather than shrink for another sequence."""


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


class FittingPane(DetailPane):
    """A pane as high as its content, where the style sheet leaves its height open.

    While it is about one sequence it does not shrink, and for another one not by a few lines: each
    change of its height moves the parts below it, which are drawn again.
    """

    class Fitted(Message):
        """The number of its lines has changed."""

    _fitted: tuple[int, int] | None = None
    """The sequence and the width that its height is fitted to."""

    def fit_lines(self, seq_id: int, lines: Sequence[Line]) -> None:
        """Replaces the lines of the pane by those about a sequence."""
        fitted = None
        if self.styles.auto_dimensions:
            fitted = seq_id, self.text_width
            num_spare = self.virtual_size.height - len(lines)
            is_as_wide = self._fitted is not None and self._fitted[1] == self.text_width
            if fitted == self._fitted or (is_as_wide and num_spare <= _MOST_SPARE):
                lines = [*lines, *[()] * num_spare]
        self._fitted = fitted
        if len(lines) != self.virtual_size.height:
            self.post_message(self.Fitted())
        self.set_lines(lines)


class ScrollablePane(DetailPane, can_focus=True, inherit_bindings=False):
    """A pane that the user can focus and scroll up and down."""

    BINDINGS = SCROLL_BINDINGS
