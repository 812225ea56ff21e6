"""The engines of one app, one of them on display."""

from collections.abc import Callable, Sequence

from seqtop.tui.settings import Settings
from seqtop.tui.source import Source
from seqtop.tui.ui_state import UiState


class Engines:
    """A `UiState` for each engine, in the order of the command line."""

    def __init__(
        self, sources: Sequence[Source], clock: Callable[[], float], settings: Settings
    ) -> None:
        self.all = [UiState(source, clock, settings) for source in sources]
        self.shown_index = 0
        """Index of the engine on display."""

    def __len__(self) -> int:
        return len(self.all)

    @property
    def ui(self) -> UiState:
        """The engine on display."""
        return self.all[self.shown_index]

    def read_steps(self) -> None:
        """Reads some of the new steps of each engine that is not on display."""
        for ui in self.all:
            if ui is not self.ui:
                with ui.lock:
                    ui.read_steps()
