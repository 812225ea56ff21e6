"""Sentences on the moment on show."""

from seqtop.history.event_index import EventKind
from seqtop.history.playback import Playback
from seqtop.history.timeline import Timeline
from seqtop.tui.seek import bounds
from seqtop.tui.ui_state import UiState

_ENDLESS = 2**62
"""More steps than any engine runs."""


def held(ui: UiState, step_keys: str) -> str:
    """Describes the moment of a paused display, the history, and the keys to go on."""
    record = ui.source.history
    reach = f"; {_reach(record)}" if record is not None else ""
    keys = f"{step_keys} step, space goes on." if record is not None else "Space goes on."
    return " ".join(filter(None, (f"{_behind(ui)}{reach}.", ui.time_travel.status_message, keys)))


def replayed(replay: Playback, remark: str, step_keys: str) -> str:
    """Describes the moment of a recording on show, its length and the playing speed."""
    record = replay.history
    marks = record.index
    start, end = bounds(record)
    length = end - start
    at = min(max(replay.entry.time - start, 0.0), length)
    last = marks[marks.at_step(_ENDLESS, near=replay.position)].step
    moment = f"{_step(replay.entry.step)} of {last:,}"
    times = f"{_clock(at)} of {_clock(length)} at {replay.speed:g}x"
    keys = f"{step_keys} step, space {'plays' if replay.paused else 'pauses'}."
    return " ".join(filter(None, (f"{moment}, {times}.", remark, keys)))


def _behind(ui: UiState) -> str:
    shown, newest = ui.state.step, ui.source.state.step
    if not ui.time_travel.is_same_incarnation:
        return f"{_step(shown)} of an earlier start of the engine"
    if shown >= newest:
        return f"{_step(shown)}, the newest" if shown >= 0 else _step(shown)
    return f"{_step(shown)} of {newest:,}, {newest - shown:,} behind"


def _reach(record: Timeline) -> str:
    with record.lock:
        oldest = record.index[record.first]
        restarted = record.index.next(EventKind.RESTART, record.first) is not None
    if restarted:
        return f"on record from step {max(oldest.step, 0):,} of an earlier start"
    return f"on record from step {max(oldest.step, 0):,}"


def _step(step: int) -> str:
    return f"Step {step:,}" if step >= 0 else "Before the first step"


def _clock(seconds: float) -> str:
    """Returns a time in a recording as players show it."""
    whole = int(min(seconds, 1e9))
    hours, rest = divmod(whole, 3600)
    clock = f"{rest // 60:02}:{rest % 60:02}"
    return f"{hours}:{clock}" if hours else clock
