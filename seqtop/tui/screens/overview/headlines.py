"""The headlines below the charts: the last drop or spike, and a look back at ten minutes ago."""

from __future__ import annotations

import time

from seqtop.explain.headlines import Change, compare, find_changes, headline, observe
from seqtop.text.sanitize import safe_line
from seqtop.tui.chrome.overview_charts import Charts
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.style import PLAIN, Line
from seqtop.tui.rendering.wrapped_text import wrap
from seqtop.tui.ui_state import UiState

_MAX_LINES = 3
"""The lines of one sentence."""
_TALL = 30
"""The height of the terminal from which on there are both sentences."""


class Headlines(LineView):
    """One sentence on the last drop or spike of the throughput, and one on the last ten minutes.

    They change once a second, and when another moment is on display.

    Args:
        ui: The display.
        charts: The charts, in whose window drops and spikes are looked for.
    """

    def __init__(self, ui: UiState, charts: Charts) -> None:
        super().__init__(id="headlines")
        self._ui = ui
        self._charts = charts
        self._shown: tuple[object, ...] = ()
        self._sentences: dict[tuple[int, float], str] = {}
        """The sentences of changes whose steps have been read, by position and time."""

    def _changes(self) -> list[Change]:
        """Returns the drops and spikes in the window of the charts."""
        window = self._charts.window
        return find_changes(self._ui.step_series, window.start, window.end)

    def update(self) -> None:
        """Draws the sentences. Called under the lock of `ui`."""
        ui, width = self._ui, max(self.app.size.width - 4, 10)  # inside of a frame
        window = self._charts.window
        position = ui.time_travel.position if ui.paused else None
        shown = ui.second, position, window.start, window.cell, width, len(ui.step_series) > 0
        if shown == self._shown:
            return
        self._shown = shown
        now = ui.state.time
        before = [change for change in self._changes() if change.time <= now]
        lines: list[Line] = []
        if before:
            change = before[-1]
            sign = ("▼ ", "alert") if change.direction == "fell" else ("▲ ", "running")
            lines += _lines(self._sentence(change), width, (sign,))
        if not lines or self.app.size.height >= _TALL:
            lines += _lines(compare(ui.step_series, now), width, ())
        self.display = bool(lines)
        self.styles.height = max(len(lines), 1)
        self.set_lines(lines)

    def _sentence(self, change: Change) -> str:
        history = self._ui.source.history
        key = history.index.at_time(change.time), change.time
        if key not in self._sentences:
            if len(self._sentences) > 100:
                self._sentences.clear()
            observed = observe(history, change, None if self._ui.paused else self._ui.state)
            step = "" if observed.step is None else f" step {observed.step:,}"
            at = time.strftime("%H:%M:%S", time.localtime(change.time))
            self._sentences[key] = f"{at}{step}: {headline(change, observed)}"
        return self._sentences[key]


def _lines(sentence: str, width: int, first: Line) -> list[Line]:
    text = safe_line(sentence)
    room = width - sum(len(part) for part, _ in first)
    parts = [text[start:end] for start, end in wrap(text, room)] if text else []
    if len(parts) > _MAX_LINES:
        last = parts[_MAX_LINES - 1].rstrip()
        parts[_MAX_LINES - 1 :] = [f"{last if len(last) < room - 1 else last.rpartition(' ')[0]} …"]
    indent = (" " * (width - room), PLAIN)
    return [
        ((" ", PLAIN), *((indent,) if index else first), (part, PLAIN))
        for index, part in enumerate(parts)
    ]
