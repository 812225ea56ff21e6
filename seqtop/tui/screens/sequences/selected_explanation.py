"""The explanation of the selected request's latency, read a little in each frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqtop.tui.condition_finder import READ_SECONDS
from seqtop.tui.ui_state import UiState

if TYPE_CHECKING:
    from seqtop.ledger.charged_explanation import ChargedExplanation


class SelectedExplanation:
    """Explains the latency of whichever request is selected.

    Args:
        ui: The display.
    """

    def __init__(self, ui: UiState) -> None:
        self._ui = ui
        self._explanation: ChargedExplanation | None = None
        """The explanation of the request for which one was last wanted."""

    @property
    def is_incomplete(self) -> bool:
        """True if the next frame has to read on."""
        return self._explanation is not None and not self._explanation.is_complete

    def read(self) -> ChargedExplanation | None:
        """Returns the explanation, as far as it has been read.

        `None` if no sequence is selected. It goes up to the moment on display, or to a later one
        for which it was read before. Each call reads for a hundredth of a second at most.
        """
        selection = self._ui.selection
        if selection is None:
            self._explanation = None
            return None
        from seqtop.ledger.charged_explanation import ChargedExplanation

        request, position = selection[0], self._ui.time_travel.position
        if self._explanation is None or not self._explanation.extend(request, position):
            self._explanation = ChargedExplanation(self._ui.source.history, request, position)
        if self._explanation.advance(READ_SECONDS):
            self._ui.request_frame()  # the next frame reads on
        return self._explanation
