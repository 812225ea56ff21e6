"""Rows in order, each known by a number: O(log n) to put one in its place, whatever n is.

What some rows are sorted by grows while time passes, by the same for all of them: how long they
have waited. Such rows keep their order among each other, so they stand in a list of their own and
none is touched when time passes; rows are read from both lists as if they were one.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeAlias

from sortedcontainers import SortedList

Entry: TypeAlias = tuple[Any, ...]
"""What to sort by, then ids, which break ties the same way always. The last is the row's number.

That of a row that grows begins with 0, then has the number that grows, as it would be while
`Order.shift` is 0."""


class Order:
    """Entries in order. Flat tuples: comparing them is most of the work."""

    def __init__(self) -> None:
        self.shift = 0.0
        """What is to be added to the number of each row that grows."""
        self._entries: dict[int, Entry] = {}
        self._still: SortedList = SortedList()
        self._growing: SortedList = SortedList()
        self._grows: set[int] = set()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, row: object) -> bool:
        return row in self._entries

    def entry(self, row: int) -> tuple[Entry, bool]:
        """Where a row stands, and whether it grows. Raises `KeyError` if it stands nowhere."""
        return self._entries[row], row in self._grows

    def load(self, rows: Iterable[tuple[Entry, bool]]) -> None:
        """Begin anew with these entries, each with whether it grows."""
        rows = list(rows)
        self._entries = {entry[-1]: entry for entry, _ in rows}
        self._grows = {entry[-1] for entry, grows in rows if grows}
        self._still = SortedList(entry for entry, grows in rows if not grows)
        self._growing = SortedList(entry for entry, grows in rows if grows)

    def put(self, row: int, entry: Entry | None, *, grows: bool = False) -> None:
        """Have a row stand at `entry`, or nowhere, wherever it stood before."""
        old = self._entries.get(row)
        grew = row in self._grows
        if old == entry and grows == grew:
            return
        if old is not None:
            (self._growing if grew else self._still).remove(old)
        if grew:
            self._grows.discard(row)
        if entry is None:
            self._entries.pop(row, None)
            return
        self._entries[row] = entry
        if grows:
            self._grows.add(row)
            self._growing.add(entry)
        else:
            self._still.add(entry)

    def page(self, start: int, stop: int) -> list[int]:
        """The numbers of the rows from place `start` to `stop`, fewer at the end."""
        start, stop = max(start, 0), max(stop, 0)
        if not self._growing:
            return [entry[-1] for entry in self._still.islice(start, stop)]
        num_growing = self._num_growing(min(start, len(self)))
        still = self._still.islice(start - num_growing)
        growing = self._growing.islice(num_growing)
        return [entry[-1] for entry in islice(self._merged(still, growing), max(stop - start, 0))]

    def at(self, place: int) -> int:
        """The number of the row at a place, counted from the end if negative."""
        place %= len(self)
        return self.page(place, place + 1)[0]

    def index(self, row: int) -> int:
        """The place of a row.

        Raises:
            KeyError: it stands nowhere.
        """
        entry = self._entries[row]
        if not self._growing:
            return int(self._still.index(entry))
        if row not in self._grows:
            before = self._growing.bisect_left(self._as_growing(entry))
            return int(self._still.index(entry) + before)
        return int(self._growing.index(entry)) + self._still_before(entry)

    def place(self, row: int, other: "Order") -> int:
        """How many rows are before where `row` stands in `other`, whether or not it is here, too.

        Both are to have the same `shift`."""
        entry = other._entries[row]
        if row in other._grows:
            return int(self._growing.bisect_left(entry)) + self._still_before(entry)
        before = self._growing.bisect_left(self._as_growing(entry)) if self._growing else 0
        return int(self._still.bisect_left(entry) + before)

    def _as_growing(self, entry: Entry) -> Entry:
        """A still entry as one of those that grow would be at the same place.

        All comparisons are of such, as rounding must be the same in each.
        """
        return (0, entry[1] - self.shift, *entry[2:]) if entry[0] == 0 else entry

    def _still_before(self, entry: Entry) -> int:
        """How many still entries come before one that grows."""
        low, high = 0, len(self._still)
        while low < high:
            middle = (low + high) // 2
            if self._as_growing(self._still[middle]) < entry:
                low = middle + 1
            else:
                high = middle
        return low

    def _num_growing(self, count: int) -> int:
        """How many of the first `count` rows are ones that grow."""
        low, high = max(count - len(self._still), 0), min(count, len(self._growing))
        while low < high:
            middle = (low + high) // 2
            if self._growing[middle] < self._as_growing(self._still[count - middle - 1]):
                low = middle + 1
            else:
                high = middle
        return low

    def _merged(self, still: Iterator[Entry], growing: Iterator[Entry]) -> Iterator[Entry]:
        one, other = next(still, None), next(growing, None)
        while one is not None or other is not None:
            if other is None or (one is not None and self._as_growing(one) < other):
                yield one  # type: ignore[misc]  # it is there if the other is not
                one = next(still, None)
            else:
                yield other
                other = next(growing, None)
