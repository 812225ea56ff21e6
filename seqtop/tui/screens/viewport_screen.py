"""A screen with a time axis that can be zoomed and moved."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from textual.binding import Binding

from seqtop.tui.chrome.tabs import Tab
from seqtop.tui.keymap import unlisted
from seqtop.tui.rendering.time_axis import TimeWindow
from seqtop.tui.rendering.viewport import Extent, Viewport
from seqtop.tui.screens.engine_screen import EngineScreen
from seqtop.tui.ui_state import UiState

_PAN = 0.25
"""Share of the window that one key press moves it by."""


class TimeView(Protocol):
    """The widget that shows the viewport."""

    @property
    def extent(self) -> Extent: ...

    @property
    def window(self) -> TimeWindow: ...


class ViewportScreen(EngineScreen):
    """A screen with a `Viewport`, the keys that change it, and a way to the table."""

    BINDINGS = [  # noqa: RUF012 (Textual's own spelling)
        Binding("plus,equals_sign", "zoom(1)", "Zoom in", id="look.closer"),
        Binding("minus", "zoom(-1)", "Zoom out", id="look.wider"),
        unlisted("h", "pan(-1)", "Look at earlier times", "look.earlier"),
        unlisted("l", "pan(1)", "Look at later times", "look.later"),
        Binding("a", "fit", "All", id="look.all", tooltip="Fit everything in"),
        Binding("f", "follow", "Now", id="look.now", tooltip="Follow the moment on display"),
    ]

    def __init__(self, ui: UiState, *, title: str, tabs: Sequence[Tab]) -> None:
        super().__init__(ui, title=title, tabs=tabs)
        self.viewport = Viewport()

    @property
    @abstractmethod
    def time_view(self) -> TimeView:
        """The widget that shows the viewport."""

    def action_zoom(self, by: int) -> None:
        view = self.time_view
        self._change(lambda: self.viewport.zoom(view.extent, view.window.width, by))

    def action_pan(self, by: int) -> None:
        view = self.time_view
        self._change(lambda: self.viewport.pan(view.extent, view.window.width, by * _PAN))

    def action_fit(self) -> None:
        self.viewport.fit()
        self.show_all()

    def action_follow(self) -> None:
        view = self.time_view
        self._change(lambda: self.viewport.follow(view.extent, view.window.width))

    def action_open(self) -> None:
        self.open_table()

    def _change(self, change: Callable[[], None]) -> None:
        with self.ui.lock:
            change()
        self.show_all()
