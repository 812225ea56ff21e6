"""Which sequences are shown and in what order, kept up to date by touching only what changed.

A view of n sequences costs O(log n) per sequence touched, whatever n is, and as much for each of
its family where there are several; only a new sort or a new filter looks at all of them. That time
passes touches nothing, but where a filter asks for how long sequences have waited: then those that
wait are looked at again a few at a time.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, TypeAlias

from sortedcontainers import SortedList, SortedSet

from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.state.backlog import Backlog
from seqtop.state.fields import FIELDS, Value
from seqtop.state.filter import EVERYTHING, Filter
from seqtop.state.model import RequestState, SequenceState
from seqtop.state.order import Entry, Order
from seqtop.state.tree import Name, Path, SequenceTree, TreePosition, paths, tree

_DIGITS = re.compile(r"(\d+)")
_LONGEST_KEY = 200
"""Characters of a text that its place in the order depends on."""
_ALONE = TreePosition()
_RUNNING, _WAITING = SequenceStatus.RUNNING, SequenceStatus.WAITING
_AT_ONCE = 2_000
"""Sequences that are looked at besides those just touched."""

Place: TypeAlias = tuple[Entry, bool]
"""Where a sequence stands in an `Order`, and whether what it is sorted by grows. The entry is what
to sort by, then the way to it from the head of its family."""


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
        self.running: SortedSet = SortedSet()
        """Ids of the sequences that are running, whether or not the filter shows them."""
        self.queue: SortedList = SortedList()
        """`(*place, id)` of every waiting sequence, in the order they are to be scheduled."""
        self.wanted = EVERYTHING
        """What is searched for among the rows, none of which it hides."""
        self.keys_made = 0
        """How often a sequence has been looked at for its place; tests hold it down."""
        self._order = Order()
        self._hits = Order()
        self._queued: dict[int, tuple[Any, ...]] = {}
        self._due = Backlog()
        """Sequences that are yet to be looked at again."""
        self._families = SequenceTree()
        self._kin: dict[int, TreePosition] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, seq_id: object) -> bool:
        return seq_id in self._order

    def page(self, start: int, stop: int) -> list[int]:
        """The ids in rows `start` to `stop`, fewer at the end."""
        return self._order.page(start, stop)

    def index(self, seq_id: int | None) -> int | None:
        """The row of a sequence; `None` if it is not shown."""
        return self._order.index(seq_id) if seq_id is not None and seq_id in self else None

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
        wanted.forget()
        self._hits.load(
            self._order.entry(seq_id)
            for seq_id in self._order.page(0, len(self))
            if wanted.tests and seq_id in state.sequences and self._is_wanted(state, seq_id)
        )

    def is_hit(self, seq_id: int) -> bool:
        """Whether a row is one that is searched for."""
        return seq_id in self._hits

    def hit_place(self, seq_id: int | None) -> tuple[int, int]:
        """Which of the hits this row is, from 1, or 0 if it is none; and how many there are."""
        if seq_id is None or seq_id not in self._hits:
            return 0, len(self._hits)
        return self._hits.index(seq_id) + 1, len(self._hits)

    def next_hit(self, seq_id: int | None, direction: int, *, here: bool = False) -> int | None:
        """The hit after this row, before it if `direction` is negative; round at the ends.

        With `here`, the row itself if it is one.
        """
        if not len(self._hits):
            return None
        if seq_id is None or seq_id not in self:
            return self._hits.at(0)
        at = self._hits.place(seq_id, self._order)
        if direction < 0:
            at -= 1
        elif seq_id in self._hits and not here:
            at += 1
        return self._hits.at(at)

    def _is_wanted(self, state: EngineState, seq_id: int) -> bool:
        sequence = state.sequences[seq_id]
        return self.wanted.matches(state.requests[sequence.request_id], sequence, state.time)

    def kin(self, seq_id: int) -> TreePosition:
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
        self._due.clear()
        self._kin.clear()
        self._families.clear()
        self.filter.forget()
        self.folded &= state.sequences.keys()
        families: dict[Name, None] = {}
        places: list[tuple[Entry, bool]] = []
        for sequence in state.sequences.values():
            if (name := self._enter(state, sequence)) is not None:
                families[name] = None
            elif (key := self._key(state, sequence)) is not None:
                places.append(_entry(key, (sequence.seq_id,)))
        for name in families:
            for seq_id, place, kin in self._places(state, name):
                if place is not None:
                    places.append(place)
                if kin is not None:
                    self._kin[seq_id] = kin
        self._pass(state.time)
        self._order.load(places)
        self.search(state, self.wanted)
        self.queue = SortedList(self._queued.values())

    def update(
        self,
        state: EngineState,
        touched: Iterable[int],
        *,
        first: Iterable[int] = (),
        most: int | None = None,
    ) -> set[int]:
        """Move, add or remove the sequences `touched`, after `state` changed.

        Returns those whose place in a tree changed, whether or not they were touched themselves.

        Args:
            first: Those that are to be right at once: the ones in sight.
            most: How many others to look at; the rest is left to the next calls (`is_behind`),
                in which a sequence that is touched again meanwhile counts once.
        """
        self._pass(state.time)
        if most is None:
            due = [*touched, *self._due.take(_AT_ONCE)]
        else:
            self._due.add(touched)
            due = [seq_id for seq_id in first if self._due.discard(seq_id)]
            due += self._due.take(most)
        changed: set[int] = set()
        families: dict[Name, None] = {}
        for seq_id in due:
            sequence = state.sequences.get(seq_id)
            if sequence is None:
                self._leave(seq_id, families)
            elif (name := self._enter(state, sequence)) is not None:
                families[name] = None
            else:
                key = self._key(state, sequence)
                place = None if key is None else _entry(key, (seq_id,))
                if self._put(state, seq_id, place, None):
                    changed.add(seq_id)
        for name in families:
            for seq_id, place, kin in self._places(state, name):
                if self._put(state, seq_id, place, kin):
                    changed.add(seq_id)
        return changed

    @property
    def is_behind(self) -> bool:
        """Whether some are yet to be looked at again; `update` goes on with it."""
        return bool(self._due)

    def tick(self, state: EngineState) -> None:
        """A second has passed: look again at the waiting that are shown by how long they wait."""
        most = 0 if self._due else _AT_ONCE
        if self.filter.grows:
            self._due.add(self._queued)
        column = FIELDS.get(self.sort.key)
        in_trees = self._kin.keys() & self._queued.keys() if column and column.grows else ()
        self.update(state, in_trees, first=in_trees, most=most)

    def _pass(self, now: float) -> None:
        """Have the rows that grow stand where they belong at the engine's time `now`."""
        now = now if math.isfinite(now) else 0.0
        shift = -now if self.sort.descending else now
        self._order.shift = self._hits.shift = shift

    def _enter(self, state: EngineState, sequence: SequenceState) -> Name | None:
        """Take note of what a sequence is doing; the name of its family, if it has one."""
        seq_id, status = sequence.seq_id, sequence.status
        request = state.requests[sequence.request_id]
        if (status == _RUNNING) != (seq_id in self.running):
            (self.running.add if status == _RUNNING else self.running.discard)(seq_id)
        if status == _WAITING:
            self._enqueue(seq_id, (*_queue_place(state, request), seq_id))
        elif seq_id in self._queued:
            self._enqueue(seq_id, None)
        return self._families.add(request, seq_id)

    def _leave(self, seq_id: int, families: dict[Name, None]) -> None:
        """Forget a sequence that is gone; adds the name of the family it leaves to `families`."""
        self.running.discard(seq_id)
        self._enqueue(seq_id, None)
        self._order.put(seq_id, None)
        self._hits.put(seq_id, None)
        self._kin.pop(seq_id, None)
        self.folded.discard(seq_id)
        self.filter.forget(seq_id)
        self.wanted.forget(seq_id)
        if name := self._families.discard(seq_id):
            families[name] = None

    def _enqueue(self, seq_id: int, queued: tuple[Any, ...] | None) -> None:
        old = self._queued.get(seq_id)
        if old == queued:
            return
        if old is not None:
            self.queue.remove(self._queued.pop(seq_id))
        if queued is not None:
            self._queued[seq_id] = queued
            self.queue.add(queued)

    def _places(
        self, state: EngineState, name: Name
    ) -> Iterator[tuple[int, Place | None, TreePosition | None]]:
        """For each sequence of a family where it stands, if it is shown, and its kin if it has any.

        A family stands where the first of its sequences would if each stood for itself.
        """
        members = self._families.members(state, name)
        if not self.tree or len(members) < 2:
            for seq_id in members:
                key = self._key(state, state.sequences[seq_id])
                yield seq_id, None if key is None else _entry(key, (seq_id,)), None
            return
        keys = {
            seq_id: self._key(state, state.sequences[seq_id], passing=False) for seq_id in members
        }
        shown = {seq_id: key[0] for seq_id, key in keys.items() if key is not None}
        descent = paths(state, members)
        kin = tree((descent[seq_id] for seq_id in shown), self.folded)
        first = min(shown.values(), default=())
        for seq_id in members:
            place = _entry((first, False), descent[seq_id]) if seq_id in kin else None
            yield seq_id, place, kin.get(seq_id)

    def _put(
        self, state: EngineState, seq_id: int, place: Place | None, kin: TreePosition | None
    ) -> bool:
        """Let a sequence stand at `place`, or nowhere; returns whether its kin changed."""
        entry, grows = (None, False) if place is None else place
        self._order.put(seq_id, entry, grows=grows)
        if self.wanted.tests:
            is_hit = entry is not None and self._is_wanted(state, seq_id)
            self._hits.put(seq_id, entry if is_hit else None, grows=grows and is_hit)
        if kin is None and seq_id not in self._kin:
            return False
        before = self._kin.pop(seq_id, None)
        if kin is not None:
            self._kin[seq_id] = kin
        return kin != before

    def _key(
        self, state: EngineState, sequence: SequenceState, *, passing: bool = True
    ) -> Place | None:
        """What to sort a sequence by, the way to it left out; `None` if the filter hides it.

        With `passing` false it is what it is just now, even if it grows.
        """
        self.keys_made += 1
        request = state.requests[sequence.request_id]
        if self.filter.tests and not self.filter.matches(request, sequence, state.time):
            return None
        column = FIELDS.get(self.sort.key)
        if column is None:
            place = _life_place(state, request, sequence)
            return (_Reversed(place),) if self.sort.descending else place, False
        grows = passing and column.grows is not None and column.grows(request, sequence)
        value = column.sort_value(request, sequence, 0.0 if grows else state.time)
        key = _comparable(value)
        if key is None:
            return (1,), False
        if self.sort.descending:
            return (0, -key if isinstance(key, float) else _Reversed(key)), grows
        return (0, key), grows


def _entry(key: Place, path: Path) -> Place:
    return (*key[0], *path), key[1]


def _life_place(
    state: EngineState, request: RequestState, sequence: SequenceState
) -> tuple[float, ...]:
    arrival = _number(request.metrics.arrival_time)
    if SequenceStatus.is_finished(sequence.status):
        return (2, -_number(request.metrics.finished_time or request.metrics.last_token_time))
    if sequence.status == _RUNNING:
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
