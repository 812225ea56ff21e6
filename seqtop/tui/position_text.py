"""Where in time the picture is, in words."""

from seqtop.history.event_index import EventKind
from seqtop.history.playback import Playback
from seqtop.history.timeline import Timeline
from seqtop.tui.feed import Feed
from seqtop.tui.time_travel import bounds

_ENDLESS = 2**62
"""No engine makes so many steps."""


def held(feed: Feed, step_keys: str) -> str:
    """Which moment a paused picture shows, how far the record reaches back, and how to go on."""
    record = feed.source.history
    reach = f"; {_reach(record)}" if record is not None else ""
    keys = f"{step_keys} step, space goes on." if record is not None else "Space goes on."
    return " ".join(filter(None, (f"{_behind(feed)}{reach}.", feed.missed or feed.remark, keys)))


def replayed(replay: Playback, remark: str, step_keys: str) -> str:
    """Which moment of a recording is shown, how long it is and how fast it is played."""
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


def _behind(feed: Feed) -> str:
    shown, newest = feed.state.step, feed.source.state.step
    if not feed.is_of_this_start:
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
    """A place in a recording, as players show it."""
    whole = int(min(seconds, 1e9))
    hours, rest = divmod(whole, 3600)
    clock = f"{rest // 60:02}:{rest % 60:02}"
    return f"{hours}:{clock}" if hours else clock
