"""Sentences below the header, shown unless the display is live."""

import time
from collections.abc import Callable

from seqtop.history.event_index import EventIndex, EventKind
from seqtop.history.timeline import Timeline
from seqtop.text import format as fmt
from seqtop.text.sanitize import safe_line
from seqtop.transport.connection import ConnectionState
from seqtop.tui.rendering.line_view import LineView
from seqtop.tui.rendering.list_view import LockedSource
from seqtop.tui.rendering.style import PLAIN
from seqtop.tui.rendering.wrapped_text import wrap
from seqtop.tui.seek import bounds
from seqtop.tui.ui_state import UiState

SENTENCES = {
    ConnectionState.CONNECTING: "Waiting for the engine's first message.",
    ConnectionState.SYNCING: "Fetching the engine's whole state.",
    ConnectionState.LIVE: "",
    ConnectionState.LOST: "The engine is silent; showing the last known state.",
    ConnectionState.STOPPED: "The engine has stopped; showing its last state.",
    ConnectionState.INCOMPATIBLE: "Not a seqtop endpoint.",
    ConnectionState.REFUSED: "The engine does not accept this viewer's key.",
    ConnectionState.REPLAY: "",
}
STEP_KEYS = "',' '.'"
"""The keys that move by one step on every screen."""
_MAX_STEP = 2**62
"""More steps than any engine runs."""


class Notice(LineView):
    """Shows the text that `sentence` returns, on up to three lines; hidden while it is empty."""

    def __init__(self, ui: LockedSource, sentence: Callable[[], str]) -> None:
        super().__init__(id="notice")
        self._ui = ui
        self._sentence = sentence

    def update(self) -> None:
        """Draws the text. Called under the lock of `ui`."""
        text = safe_line(self._sentence())
        if not text and not self.display:
            return
        self.display = bool(text)
        breaks = wrap(text, max(self.app.size.width - 2, 1))[:3] if text else []
        self.styles.height = max(len(breaks), 1)
        self.set_lines([((" " + text[start:end], PLAIN),) for start, end in breaks])

    def on_resize(self) -> None:
        with self._ui.lock:
            self.update()


def notice_text(ui: UiState) -> str:
    """Describes the moment on display and the connection; empty if the display is live."""
    connection, travel = ui.source.connection, ui.time_travel
    reason = ""
    if connection.state is not ConnectionState.LIVE:
        reason = connection.detail or SENTENCES[connection.state]
    if travel.playback is not None:
        moment = _replay_text(ui, travel.playback.speed)
    elif ui.paused:
        moment = _paused_text(ui)
    else:
        moment = _restart_text(ui)
    return " ".join(filter(None, (_search_text(ui), moment, reason)))


def _search_text(ui: UiState) -> str:
    """Describes the search for a condition in progress."""
    search, timeline = ui.condition_finder.search, ui.source.history
    if search is None:
        return ""
    step = max(timeline.index[max(search.position, timeline.first)].step, 0)
    return f"Searching for {ui.condition_finder.condition}: step {step:,}; Esc cancels."


def _restart_text(ui: UiState) -> str:
    """Describes a recent restart of the engine, and the key to its last step before."""
    restart = ui.restarts.recent
    if restart is None:
        return ""
    clock = time.strftime("%H:%M:%S", time.localtime(restart.time))
    were = "was" if restart.num_running == 1 else "were"
    running = f"{fmt.plural(restart.num_running, 'request')} {were} running"
    return f"The engine was restarted at {clock}; {running}; ',' shows its last step."


def _paused_text(ui: UiState) -> str:
    """Describes the moment of a paused display, the history, and the keys to go on."""
    history = _history_text(ui.source.history)
    text = f"{_position_text(ui)}; {history}." if history else f"{_position_text(ui)}."
    keys = f"{STEP_KEYS} step, space resumes."
    return " ".join(filter(None, (text, ui.time_travel.status_message, keys)))


def _replay_text(ui: UiState, speed: float) -> str:
    """Describes the moment of a recording on display, its length and the playing speed."""
    index, position = ui.source.history.index, ui.time_travel.position
    start, end = bounds(ui.source.history)
    length = end - start
    at = min(max(index[position].time - start, 0.0), length)
    last = index[index.at_step(_MAX_STEP, near=position)].step
    moment = f"{_step_text(index[position].step)} of {last:,}"
    times = f"{_clock(at)} of {_clock(length)} at {speed:g}x"
    keys = f"{STEP_KEYS} step, space {'resumes' if ui.paused else 'pauses'}."
    if ui.paused and position >= ui.source.history.last:
        keys = _keys_at_the_end(index, position)
    return " ".join(filter(None, (f"{moment}, {times}.", ui.time_travel.status_message, keys)))


def _keys_at_the_end(index: EventIndex, position: int) -> str:
    """Names the keys that lead from the end of a recording to moments of interest."""
    jumps = [
        text
        for kind, text in (
            (EventKind.PREEMPTION, "p to the last preemption"),
            (EventKind.FINISH, "e to the last end of a request"),
        )
        if index.previous(kind, position) is not None
    ]
    return f"The end: {', '.join([*jumps, '0 to the beginning, space plays from there'])}."


def _position_text(ui: UiState) -> str:
    shown, newest = ui.state.step, ui.newest.step
    if not ui.time_travel.is_same_incarnation:
        return f"{_step_text(shown)} of an earlier start of the engine"
    if shown >= newest:
        return f"{_step_text(shown)}, the newest" if shown >= 0 else _step_text(shown)
    return f"{_step_text(shown)} of {newest:,}, {newest - shown:,} behind"


def _history_text(timeline: Timeline) -> str:
    """Describes the beginning of the history; empty if it is that of the engine."""
    with timeline.lock:
        oldest = timeline.index[timeline.first]
        restarted = timeline.index.next(EventKind.RESTART, timeline.first) is not None
    if oldest.step <= 0 and not restarted:
        return ""
    text = f"history from step {max(oldest.step, 0):,}"
    return f"{text} of an earlier start" if restarted else text


def _step_text(step: int) -> str:
    return f"Step {step:,}" if step >= 0 else "Before the first step"


def _clock(seconds: float) -> str:
    """Returns a time in a recording as players show it."""
    whole = int(min(seconds, 1e9))
    hours, rest = divmod(whole, 3600)
    clock = f"{rest // 60:02}:{rest % 60:02}"
    return f"{hours}:{clock}" if hours else clock
