"""Going through what is on record: finding a moment, and holding the state there.

Positions are those of `seqtop.history.event_index`.
"""

import contextlib
from collections.abc import Callable
from typing import TypeAlias

from seqtop import format as fmt
from seqtop.history.event_index import EventKind
from seqtop.history.segments import Gap
from seqtop.history.timeline import Cursor, RecordingError, Timeline
from seqtop.state import EngineState
from seqtop.state.freeze import freeze
from seqtop.wire.messages import Preemption, RequestFinished, Step

Seek: TypeAlias = Callable[[Timeline, int], int | None]
"""From a position on a timeline to another; `None` if there is none. The timeline is locked."""

_MOST_LOOKED_INTO = 1_000


def by_steps(count: int) -> Seek:
    """So many steps on, or back if negative; fewer where the record ends."""

    def find(timeline: Timeline, position: int) -> int | None:
        move = timeline.index.next_step if count > 0 else timeline.index.previous_step
        reached = None
        for _ in range(abs(count)):
            found = move(position)
            if found is None:
                break
            reached = position = found
        return reached

    return find


def to_kind(kind: EventKind, direction: int) -> Seek:
    """The next moment of `kind`, or the previous one if `direction` is negative."""

    def find(timeline: Timeline, position: int) -> int | None:
        marks = timeline.index
        return (marks.next if direction > 0 else marks.previous)(kind, position)

    return find


def to_preemption_of(request_id: str, direction: int) -> Seek:
    """The next preemption of one request, or the previous one if `direction` is negative.

    Looks into no more than `_MOST_LOOKED_INTO` preemptions, as each has to be read.
    """

    def find(timeline: Timeline, position: int) -> int | None:
        move = timeline.index.next if direction > 0 else timeline.index.previous
        for _ in range(_MOST_LOOKED_INTO):
            found = move(EventKind.PREEMPTION, position)
            if found is None:
                return None
            position = found
            with contextlib.suppress(RecordingError):
                if request_id in describe_moment(timeline, position)[1]:
                    return position
        return None

    return find


def to_step(step: int, *, near: int | None = None) -> Seek:
    """The end of `step`, or the nearest on record, of the engine's start that ran at `near`.

    `near` is a position; by default the one on show.
    """

    def find(timeline: Timeline, position: int) -> int | None:
        return timeline.index.at_step(step, near=position if near is None else near)

    return find


def to_end(direction: int) -> Seek:
    """The newest moment, or the oldest if `direction` is negative."""
    return lambda timeline, _: timeline.last if direction > 0 else timeline.first


def to_share(share: float) -> Seek:
    """The moment at a share of the recorded time, from 0 to 1."""

    def find(timeline: Timeline, position: int) -> int | None:
        begin, end = bounds(timeline)
        if share <= 0:
            return timeline.first
        return timeline.index.at_time(begin + min(share, 1.0) * (end - begin))

    return find


def by_share(share: float) -> Seek:
    """On by a share of the recorded time, or back if negative; by a step at the least."""

    def find(timeline: Timeline, position: int) -> int | None:
        begin, end = bounds(timeline)
        wanted = max(timeline.index[position].time, begin) + share * (end - begin)
        found = timeline.index.at_time(wanted) if wanted >= begin else timeline.first
        if (found - position) * share > 0:
            return found
        return by_steps(1 if share > 0 else -1)(timeline, position)

    return find


def bounds(timeline: Timeline) -> tuple[float, float]:
    """When the record begins and ends, epoch seconds."""
    marks = timeline.index
    # The state before the first event has no time of its own.
    return marks[min(timeline.first + 1, timeline.last)].time, marks[timeline.last].time


def gap_message(timeline: Timeline, start: int, stop: int) -> str:
    """What is missing right before `stop` and on the way there from `start`, as sentences; empty if
    nothing is."""
    low, high = min(start, stop), max(start, stop)
    gaps = [gap for gap in timeline.gaps if gap.restarted or gap.num_missed]
    here = [gap for gap in gaps if _is_at(timeline, gap, stop)]
    between = [gap for gap in gaps if low < gap.position <= high and gap not in here]
    told = [f"{str(gap)[:1].upper()}{str(gap)[1:]} here." for gap in here]
    if len(between) > 1:
        told.append(f"{fmt.plural(len(between), 'hole')} in the record lie between.")
    elif between and between[0].restarted:
        told.append("A restart of the engine lies between.")
    else:
        told += [f"{gap} between." for gap in between]
    return " ".join(told)


def _is_at(timeline: Timeline, gap: Gap, position: int) -> bool:
    """Whether `position` is in the first step after a gap."""
    marks = timeline.index
    if not timeline.first <= gap.position <= position:
        return False
    following = marks.next(EventKind.RESTART, gap.position)
    same_start = following is None or position < following
    return same_start and marks[gap.position].step == marks[position].step


def describe_moment(timeline: Timeline, position: int) -> tuple[str, dict[str, str]]:
    """What befell whom at a moment: in a word, and by the requests' ids what it cost them, if it
    is told. Nobody at most moments.

    Of blocks that came back from host memory no step says whose they are: they are counted.

    Raises:
        RecordingError: it cannot be read.
    """
    for _, event in timeline.events(position - 1, position):
        if isinstance(event, RequestFinished):
            return "Ended", {event.request_id: ""}
        if isinstance(event, Step):
            if event.preemptions:
                return "Preempted", {each.request_id: _cost(each) for each in event.preemptions}
            swapped = len(event.execute.blocks_to_swap_in)
            return ("Swapped in", {fmt.plural(swapped, "block"): ""}) if swapped else ("", {})
    return "", {}


def _cost(preemption: Preemption) -> str:
    """What a preemption makes to be done again."""
    if preemption.mode == "swap":
        return "swapped out"
    return f"{fmt.plural(preemption.num_lost_tokens, 'token')} lost"


class HeldMoment:
    """A held picture of a session that goes on: as it was last, until moved along its record.

    Args:
        state: The session's own, which a still is taken of.
        timeline: The session's record, if it keeps one, up to this very state.
    """

    def __init__(self, state: EngineState, timeline: Timeline | None) -> None:
        self._timeline = timeline
        self._still = freeze(state)
        self._position = 0 if timeline is None else timeline.last
        self._cursor: Cursor | None = None  # a still costs less, and often is all that is wanted

    @property
    def state(self) -> EngineState:
        return self._still if self._cursor is None else self._cursor.state

    @property
    def position(self) -> int:
        return self._position if self._cursor is None else self._cursor.position

    def move(self, position: int) -> set[int]:
        """Go to `position`, or the nearest on record.

        Returns the ids of the sequences that changed, came or went.

        Raises:
            RecordingError: it cannot be read.
        """
        assert self._timeline is not None, "only what is on record can be found"
        before, touched = self.state, None
        if self._cursor is None:
            self._cursor = Cursor(self._timeline, position)
        else:
            touched = self._cursor.move(position)
        return _differing(before, self.state) if touched is None else touched


def _differing(old: EngineState, new: EngineState) -> set[int]:
    """The sequences that are not the same objects: states share what has finished."""
    changed = old.sequences.keys() ^ new.sequences.keys()
    changed.update(
        seq_id
        for seq_id, sequence in new.sequences.items()
        if old.sequences.get(seq_id) is not sequence
        or old.requests.get(sequence.request_id) is not new.requests[sequence.request_id]
    )
    return changed
