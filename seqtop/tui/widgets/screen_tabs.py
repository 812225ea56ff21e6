"""The line that names the screens, each with its key; the one on show stands out."""

from collections.abc import Sequence

from textual import events
from textual.strip import Strip

from seqtop.tui.ink import PLAIN, Inked, Line


class ScreenTabs(Inked, can_focus=False):
    """Tabs for `screens`, (name, title) each. A click on one goes there."""

    def __init__(self, screens: Sequence[tuple[str, str]], shown: str) -> None:
        super().__init__()
        self._screens = screens
        self._shown = shown

    def render_line(self, y: int) -> Strip:
        return self.paint(self._line(), self.size.width, "header") if y == 0 else Strip([])

    def on_click(self, event: events.Click) -> None:
        right = 0
        for key, (name, title) in enumerate(self._screens, start=1):
            right += len(_label(key, title))
            if event.x < right:
                self.app.switch_mode(name)
                return

    def _line(self) -> Line:
        return tuple(
            (_label(key, title), "tab" if name == self._shown else PLAIN)
            for key, (name, title) in enumerate(self._screens, start=1)
        )


def _label(key: int, title: str) -> str:
    return f" {key} {title} "
