"""Which sequences are shown and in what order, kept up to date by touching only what changed.

A view of n sequences costs O(log n) per sequence touched, whatever n is, and as much for each of
its family where there are several; only a new sort or a new filter looks at all of them.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, TypeAlias

from sortedcontainers import SortedList

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.columns import FIELDS, Value
from seqtop.state.family import Families, Kin, Name, Path, paths, tree
from seqtop.state.filter import EVERYTHING, Filter
from seqtop.state.model import RequestState, SequenceState

_DIGITS = re.compile(r"(\d+)")
_LONGEST_KEY = 200
"""Characters of a text that its place in the order depends on."""
_ALONE = Kin()

Entry: TypeAlias = tuple[tuple[Any, ...], Path]
"""What to sort by, then the way to a sequence: ids, which break ties the same way always."""


@dataclass(frozen=True)
class Sort:
    """An order: by a column, or by life (`key` empty).

    By life, running sequences come first in order of arrival, then the waiting and swapped in
    the order of the queue, then the finished, latest first: rows stay where they are for as
    long as their sequence stays what it is.
    """

    key: str = ""
    descending: bool = False


class SequenceView:
    """The ids of the sequences of an `EngineState` that a filter lets through, in order."""

    def __init__(self) -> None:
        self.sort = Sort()
        self.filter = EVERYTHING
        self.tree = True
        """Whether the sequences of one request stand together, below the one they descend from."""
        self.folded: set[int] = set()
        """Sequences whose descendants are out of sight while they stand in a tree."""
        self.running: set[int] = set()
        """Sequences that are running, whether or not the filter shows them."""
        self.queue: SortedList = SortedList()
        """`(*place, id)` of every waiting sequence, in the order they are to be scheduled."""
        self._order: SortedList = SortedList()
        self._entries: dict[int, Entry] = {}
        self._queued: dict[int, tuple[Any, ...]] = {}
        self.wanted = EVERYTHING
        """What is searched for among the rows, none of which it hides."""
        self._hits: SortedList = SortedList()
        self._families = Families()
        self._kin: dict[int, Kin] = {}

    def __len__(self) -> int:
        return len(self._order)

    def page(self, start: int, stop: int) -> list[int]:
        """The ids in rows `start` to `stop`, fewer at the end."""
        return [path[-1] for _, path in self._order.islice(max(start, 0), max(stop, 0))]

    def index(self, seq_id: int | None) -> int | None:
        """The row of a sequence; `None` if it is not shown."""
        entry = self._entries.get(seq_id) if seq_id is not None else None
        return None if entry is None else int(self._order.index(entry))

    def queue_place(self, seq_id: int) -> tuple[int, int] | None:
        """How many waiting sequences are ahead of this one, and which is right ahead of it.

        `None` if it does not wait. For the head of the queue the second is its own id.
        """
        queued = self._queued.get(seq_id)
        if queued is None:
            return None
        ahead = int(self.queue.index(queued))
        return ahead, self.queue[max(ahead - 1, 0)][-1]

    def search(self, state: EngineState, wanted: Filter) -> None:
        """Look for `wanted` from now on; nothing is a hit if it asks for nothing."""
        self.wanted = wanted
        self._hits = SortedList(
            entry for seq_id, entry in self._entries.items() if self._is_wanted(state, seq_id)
        )

    def is_hit(self, seq_id: int) -> bool:
        """Whether a row is one that is searched for."""
        entry = self._entries.get(seq_id)
        return bool(self._hits) and entry is not None and entry in self._hits

    def hit_place(self, seq_id: int | None) -> tuple[int, int]:
        """Which of the hits this row is, from 1, or 0 if it is none; and how many there are."""
        if seq_id is None or not self.is_hit(seq_id):
            return 0, len(self._hits)
        return int(self._hits.index(self._entries[seq_id])) + 1, len(self._hits)

    def next_hit(self, seq_id: int | None, direction: int, *, here: bool = False) -> int | None:
        """The hit after this row, before it if `direction` is negative; round at the ends.

        With `here`, the row itself if it is one.
        """
        if not self._hits:
            return None
        entry = self._entries.get(seq_id) if seq_id is not None else None
        if entry is None:
            at = 0
        elif direction > 0:
            at = self._hits.bisect_left(entry) if here else self._hits.bisect_right(entry)
        else:
            at = self._hits.bisect_left(entry) - 1
        return int(self._hits[at % len(self._hits)][1][-1])

    def _is_wanted(self, state: EngineState, seq_id: int) -> bool:
        sequence = state.sequences[seq_id]
        request = state.requests[sequence.request_id]
        return bool(self.wanted.tests) and self.wanted.matches(request, sequence, state.time)

    def kin(self, seq_id: int) -> Kin:
        """Where a shown sequence stands in the tree of its family."""
        return self._kin.get(seq_id, _ALONE)

    def fold_all(self) -> None:
        """Fold every family that is shown, or unfold all if any is folded; then `rebuild`."""
        if self.folded:
            self.folded.clear()
        else:
            self.folded.update(
                seq_id for seq_id, kin in self._kin.items() if kin.is_parent and not kin.rails
            )

    def rebuild(self, state: EngineState) -> None:
        """Sort and filter everything anew: after another sort, another filter or another state."""
        self.running.clear()
        self._queued.clear()
        self._entries.clear()
        self._kin.clear()
        self._families.clear()
        self.folded &= state.sequences.keys()
        names: dict[Name, None] = {}
        for sequence in state.sequences.values():
            names[self._enter(state, sequence)] = None
        for name in names:
            for seq_id, entry, kin in self._places(state, name):
                if entry is not None:
                    self._entries[seq_id] = entry
                if kin is not None:
                    self._kin[seq_id] = kin
        self._order = SortedList(self._entries.values())
        self.search(state, self.wanted)
        self.queue = SortedList(self._queued.values())

    def update(self, state: EngineState, touched: Iterable[int]) -> set[int]:
        """Move, add or remove the sequences `touched`, after `state` changed.

        Returns those whose place in a tree changed, whether or not they were touched themselves.
        """
        names: dict[Name, None] = {}
        changed: set[int] = set()
        for seq_id in touched:
            queued = self._queued.pop(seq_id, None)
            self.running.discard(seq_id)
            if sequence := state.sequences.get(seq_id):
                names[self._enter(state, sequence)] = None
            else:
                self._put(state, seq_id, None, None)
                self.folded.discard(seq_id)
                if name := self._families.discard(seq_id):
                    names[name] = None
            _replace(self.queue, queued, self._queued.get(seq_id))
        for name in names:
            changed.update(
                seq_id
                for seq_id, entry, kin in self._places(state, name)
                if self._put(state, seq_id, entry, kin)
            )
        return changed

    def tick(self, state: EngineState) -> None:
        """Let time pass: move the waiting whose place or match depends on how long they wait."""
        column = FIELDS.get(self.sort.key)
        if self.filter.grows or (column is not None and column.grows):
            self.update(state, list(self._queued))

    def _enter(self, state: EngineState, sequence: SequenceState) -> Name:
        """Take note of what a sequence is doing; returns the name of its family."""
        request = state.requests[sequence.request_id]
        if sequence.status == SequenceStatus.RUNNING:
            self.running.add(sequence.seq_id)
        elif sequence.status == SequenceStatus.WAITING:
            self._queued[sequence.seq_id] = (*_queue_place(state, request), sequence.seq_id)
        return self._families.add(request, sequence.seq_id)

    def _places(
        self, state: EngineState, name: Name
    ) -> Iterator[tuple[int, Entry | None, Kin | None]]:
        """For each sequence of a family where it stands, if it is shown, and its kin if it has any.

        A family stands where the first of its sequences would if each stood for itself.
        """
        members = self._families.members(state, name)
        keys = {seq_id: self._key(state, seq_id) for seq_id in members}
        shown = {seq_id: key for seq_id, key in keys.items() if key is not None}
        if not self.tree or len(members) < 2:
            for seq_id, key in keys.items():
                yield seq_id, None if key is None else (key, (seq_id,)), None
            return
        descent = paths(state, members)
        kin = tree((descent[seq_id] for seq_id in shown), self.folded)
        first = min(shown.values(), default=())
        for seq_id in members:
            in_sight = seq_id in kin
            yield seq_id, (first, descent[seq_id]) if in_sight else None, kin.get(seq_id)

    def _put(self, state: EngineState, seq_id: int, entry: Entry | None, kin: Kin | None) -> bool:
        """Let a sequence stand at `entry`, or nowhere; returns whether its kin changed."""
        old = self._entries.pop(seq_id, None)
        _replace(self._order, old, entry)
        if self.wanted.tests:
            was = old if old is not None and old in self._hits else None
            is_hit = entry is not None and self._is_wanted(state, seq_id)
            _replace(self._hits, was, entry if is_hit else None)
        if entry is not None:
            self._entries[seq_id] = entry
        before = self._kin.pop(seq_id, None)
        if kin is not None:
            self._kin[seq_id] = kin
        return kin != before

    def _key(self, state: EngineState, seq_id: int) -> tuple[Any, ...] | None:
        """What to sort a sequence by; `None` if the filter hides it."""
        sequence = state.sequences[seq_id]
        request = state.requests[sequence.request_id]
        if not self.filter.matches(request, sequence, state.time):
            return None
        column = FIELDS.get(self.sort.key)
        if column is None:
            place = _life_place(state, request, sequence)
            return (_Reversed(place),) if self.sort.descending else place
        key = _comparable(column.sort_value(request, sequence, state.time))
        if key is None:
            return (1,)
        if not self.sort.descending:
            return (0, key)
        return (0, -key if isinstance(key, float) else _Reversed(key))


def _life_place(
    state: EngineState, request: RequestState, sequence: SequenceState
) -> tuple[float, ...]:
    arrival = _number(request.metrics.arrival_time)
    if SequenceStatus.is_finished(sequence.status):
        return (2, -_number(request.metrics.finished_time or request.metrics.last_token_time))
    if sequence.status == SequenceStatus.RUNNING:
        return (0, arrival)
    return (1, *_queue_place(state, request))


def _queue_place(state: EngineState, request: RequestState) -> tuple[float, ...]:
    """Who is scheduled next comes first, by the rule that the engine says it goes by."""
    order = state.info.queue_order if state.info else "preempted_first"
    if order == "fcfs":
        return (request.queue_turn,)
    preempted = order == "preempted_first" and request.num_preemptions > 0
    return (not preempted, request.priority, _number(request.metrics.arrival_time))


def _comparable(value: Value) -> float | tuple[Any, ...] | None:
    """A key that orders `req-7` before `req-10`; numbers become floats."""
    if not isinstance(value, str):
        return None if value is None else _number(value)
    parts = _DIGITS.split(value[:_LONGEST_KEY].casefold())
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))


def _number(value: float) -> float:
    """A float that orders: NaN, which orders nothing, counts as zero."""
    number = float(value)
    return 0.0 if math.isnan(number) else number


def _replace(order: SortedList, old: object, new: object) -> None:
    if old == new:
        return
    if old is not None:
        order.remove(old)
    if new is not None:
        order.add(new)


@total_ordering
class _Reversed:
    """A key that sorts the other way round."""

    __slots__ = ("key",)

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key

    def __lt__(self, other: "_Reversed") -> bool:
        return bool(other.key < self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.key == other.key
