"""Functions that find a position on a timeline.

Positions are those of `seqtop.history.event_index`.
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import TypeAlias

from seqtop.history.event_index import EventKind
from seqtop.history.timeline import RecordingError, Timeline
from seqtop.text import format as fmt
from seqtop.wire.batch import block_moves
from seqtop.wire.messages import Preemption, RequestFinished, Step

Seek: TypeAlias = Callable[[Timeline, int], int | None]
"""Maps a position on a timeline to another, or to `None` if there is none. The timeline's lock is
held during the call."""

_MAX_PREEMPTIONS = 1_000
"""Preemptions that are read to find one of a request: each takes a read of the history."""


def by_steps(count: int) -> Seek:
    """Finds the position `count` steps forward, or back if negative; fewer at the history's end."""

    def seek(timeline: Timeline, position: int) -> int | None:
        move = timeline.index.next_step if count > 0 else timeline.index.previous_step
        reached = None
        for _ in range(abs(count)):
            following = move(position)
            if following is None:
                break
            reached = position = following
        return reached

    return seek


def to_kind(kind: EventKind, direction: int) -> Seek:
    """Finds the next event of `kind`, or the previous one if `direction` is negative."""

    def seek(timeline: Timeline, position: int) -> int | None:
        index = timeline.index
        return (index.next if direction > 0 else index.previous)(kind, position)

    return seek


def before_restart(timeline: Timeline, position: int) -> int | None:
    """Finds the last position before the last restart of the engine."""
    restart = timeline.index.previous(EventKind.RESTART, position + 1)
    return None if restart is None else restart - 1


def to_preemption_of(request_id: str, direction: int) -> Seek:
    """Finds the next preemption of a request, or the previous one if `direction` is negative.

    Reads at most `_MAX_PREEMPTIONS` preemptions.
    """

    def seek(timeline: Timeline, position: int) -> int | None:
        move = timeline.index.next if direction > 0 else timeline.index.previous
        for _ in range(_MAX_PREEMPTIONS):
            following = move(EventKind.PREEMPTION, position)
            if following is None:
                return None
            position = following
            with contextlib.suppress(RecordingError):
                if request_id in describe_moment(timeline, position)[1]:
                    return position
        return None

    return seek


def to_step(step: int, *, near: int | None = None) -> Seek:
    """Finds the end of `step`, or the nearest step in the history.

    The step is one of the incarnation that ran at the position `near`, by default at the position
    on display.
    """

    def seek(timeline: Timeline, position: int) -> int | None:
        return timeline.index.at_step(step, near=position if near is None else near)

    return seek


def to_position(position: int) -> Seek:
    """Finds `position`, or the oldest position if it has been dropped."""
    return lambda timeline, _: max(position, timeline.first)


def to_next(positions: Iterable[int], direction: int) -> Seek:
    """Finds the next of some positions, or the previous one if `direction` is negative."""
    choose = min if direction > 0 else max

    def seek(timeline: Timeline, position: int) -> int | None:
        beyond = (
            candidate
            for candidate in positions
            if candidate >= timeline.first and (candidate - position) * direction > 0
        )
        return choose(beyond, default=None)

    return seek


def to_end(direction: int) -> Seek:
    """Finds the newest position, or the oldest if `direction` is negative."""
    return lambda timeline, _: timeline.last if direction > 0 else timeline.first


def to_share(share: float) -> Seek:
    """Finds the position at a share of the recorded time, from 0 to 1."""

    def seek(timeline: Timeline, position: int) -> int | None:
        begin, end = bounds(timeline)
        if share <= 0:
            return timeline.first
        return timeline.index.at_time(begin + min(share, 1.0) * (end - begin))

    return seek


def to_time(time: float, direction: int = 0) -> Seek:
    """Finds the last position that is not after `time` (epoch seconds).

    Args:
        time: The time.
        direction: 1 or -1 if the position has to be after, or before, that on display; then it is
            at least one step away.
    """

    def seek(timeline: Timeline, position: int) -> int | None:
        begin, _ = bounds(timeline)
        target = timeline.index.at_time(time) if time >= begin else timeline.first
        return _at_another_step(timeline, position, target, direction) if direction else target

    return seek


def by_share(share: float) -> Seek:
    """Finds the position a share of the recorded time later, or earlier; at least one step away."""

    def seek(timeline: Timeline, position: int) -> int | None:
        begin, end = bounds(timeline)
        wanted = max(timeline.index[position].time, begin) + share * (end - begin)
        target = timeline.index.at_time(wanted) if wanted >= begin else timeline.first
        return _at_another_step(timeline, position, target, 1 if share > 0 else -1)

    return seek


def _at_another_step(timeline: Timeline, position: int, target: int, direction: int) -> int | None:
    """Returns `target`, or the end of the next step in that direction if it is at no other step.

    A step lasts until the next one, and has positions of its own for what arrives in between.
    """
    is_beyond = (target - position) * direction > 0
    if is_beyond and timeline.index[target].step != timeline.index[position].step:
        return target
    next_step = by_steps(direction)(timeline, position)
    return target if next_step is None and is_beyond else next_step


def bounds(timeline: Timeline) -> tuple[float, float]:
    """Returns the times of the oldest and the newest event, in epoch seconds."""
    index = timeline.index
    # The state before the first event has no time of its own.
    return index[min(timeline.first + 1, timeline.last)].time, index[timeline.last].time


def describe_moment(timeline: Timeline, position: int) -> tuple[str, dict[str, str]]:
    """Describes an event that ends, preempts or swaps in requests.

    Returns:
        A word for the event, and the cost of the event by request id; a cost is empty if it is not
        known. Both are empty for other events. A step that swaps in blocks does not name their
        requests: the number of blocks stands in their place.

    Raises:
        RecordingError: The event cannot be read.
    """
    for _, event in timeline.events(position - 1, position):
        if isinstance(event, RequestFinished):
            return "Ended", {event.request_id: ""}
        if isinstance(event, Step):
            if event.preemptions:
                return "Preempted", {
                    preemption.request_id: _cost(preemption) for preemption in event.preemptions
                }
            swapped = len(block_moves(event).swapped_in)
            return ("Swapped in", {fmt.plural(swapped, "block"): ""}) if swapped else ("", {})
    return "", {}


def _cost(preemption: Preemption) -> str:
    own = preemption.for_request_id
    by = f", for {own}" if own else ""
    if preemption.mode == "swap":
        return f"swapped out{by}"
    return f"{fmt.plural(preemption.num_lost_tokens, 'token')} lost{by}"
