"""Rows of groups, and below each that is unfolded the rows of its sequences.

The figures of a group follow every change; the groups change places once a second at most.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Set
from typing import Any, Protocol

from sortedcontainers import SortedList

from seqtop.state.groups import Group, Groups
from seqtop.state.model import EngineData
from seqtop.state.sort_key import Sort, SortKey

FIGURES: dict[str, Callable[[Group], float | None]] = {
    "blocks": lambda group: group.num_blocks,
    "prompt": lambda group: group.num_prompt_tokens,
    "out": lambda group: group.num_output_tokens,
    "preempt": lambda group: group.num_preemptions,
    "waited": lambda group: group.waited_seconds,
    "ttft": lambda group: group.ttft_seconds,
    "harm": lambda group: group.harm_seconds,
}
"""The figures of a group by the key of their column."""

_MAX_FORMER = 1_000
"""Groups without sequences whose rows keep their keys."""


class SequenceKeys(Protocol):
    """The sequences that a filter accepts, and their order."""

    sort: Sort

    def key_of(self, seq_id: int) -> SortKey | None:
        """Returns the key of a row; `None` if the sequence is not shown."""


class GroupedRows:
    """The rows of groups and of their sequences.

    The key of a sequence's row is its id, that of a group's row is negative.

    Args:
        view: The sequences to group.
    """

    def __init__(self, view: SequenceKeys) -> None:
        self._view = view
        self._groups: Groups | None = None
        self._state: EngineData | None = None
        self._rows: dict[str, int] = {}
        """The keys of the rows of groups."""
        self._last_row = 0
        self._unfolded: dict[str, SortedList[Any]] = {}
        """The keys of the rows of each unfolded group."""
        self._keys: dict[int, tuple[str, SortKey]] = {}
        """The group and the key of each row in an unfolded group."""
        self._order: list[str] = []
        self._by_row: dict[int, str] = {}
        """The groups by the keys of their rows."""
        self._starts: list[int] | None = None
        """The index of each group's row; `None` if it has to be computed."""
        self._num_rows = 0

    @property
    def by(self) -> str:
        """The key of the groups; empty if rows are not grouped."""
        return "" if self._groups is None else self._groups.key

    def __len__(self) -> int:
        self._arrange()
        return self._num_rows

    def group_by(self, state: EngineData, key: str) -> None:
        """Groups all sequences by a key, all groups folded; an empty key ends that.

        Raises:
            GroupKeyError: There is no such key.
        """
        self._groups = Groups(key) if key else None
        self._unfolded.clear()
        self.rebuild(state)

    def rebuild(self, state: EngineData) -> None:
        """Counts all sequences of a state."""
        if self._groups is None:
            return
        self._state = state
        self._groups = Groups(self._groups.key)
        self._keys.clear()
        for rows in self._unfolded.values():
            rows.clear()
        self._update(state, state.sequences)
        self.tick(state)

    def update(self, state: EngineData, touched: Iterable[int]) -> None:
        """Counts the sequences that changed, after the view was updated."""
        if self._groups is not None:
            self._state = state
            self._update(state, touched)

    def tick(self, state: EngineData) -> None:
        """Orders the groups by their present figures, and rows by values that grow with time."""
        groups = self._groups
        if groups is None:
            return
        for name, rows in self._unfolded.items():
            if any(self._view.key_of(key[-1]) != key for key in rows):
                self._fill(name)
        sort = self._view.sort
        figure = FIGURES.get(sort.key)
        value, sign = (figure, -1 if sort.descending else 1) if figure else (FIGURES["blocks"], -1)

        def key(name: str) -> tuple[bool, float, int, str]:
            group = groups.figures(name, state.time)
            known = value(group)
            return known is None, sign * (known or 0.0), -group.num_requests, name

        self._order = sorted(groups.names, key=key)
        self._starts = None
        if len(self._rows) > 2 * len(self._order) + _MAX_FORMER:
            self._rows = {name: self._row_of(name) for name in self._order}
            self._by_row = {row: name for name, row in self._rows.items()}

    def group(self, row: int) -> Group | None:
        """Returns the figures of the group with a row; `None` if it is not that of a group."""
        name, groups, state = self._by_row.get(row), self._groups, self._state
        if name is None or groups is None or state is None or name not in groups.names:
            return None
        return groups.figures(name, state.time)

    def holders(self, row: int) -> Set[int]:
        """Returns the ids of those sequences of the group with a row that hold blocks."""
        name, groups = self._by_row.get(row), self._groups
        return set() if name is None or groups is None else groups.holders(name)

    def is_unfolded(self, row: int) -> bool:
        """Returns whether the sequences of a group are shown."""
        return self._by_row.get(row) in self._unfolded

    def toggle(self, row: int) -> int | None:
        """Folds or unfolds a group, or folds the one that a sequence is in.

        Returns:
            The key of the group's row; `None` if there is no such row.
        """
        name = self._by_row.get(row)
        if name is None and row in self._keys:
            name = self._keys[row][0]
        if name is None:
            return None
        self._set_unfolded(name, name not in self._unfolded)
        return self._row_of(name)

    def toggle_all(self) -> None:
        """Folds all groups, or unfolds all if all are folded."""
        is_unfolding = not self._unfolded
        for name in self._order if is_unfolding else list(self._unfolded):
            self._set_unfolded(name, is_unfolding)

    def reveal(self, seq_id: int) -> None:
        """Unfolds the group of a sequence."""
        name = None if self._groups is None else self._groups.name_of(seq_id)
        if name is not None and name not in self._unfolded:
            self._set_unfolded(name, True)

    def page(self, start: int, stop: int) -> list[int]:
        """Returns the keys of rows `start` to `stop`; fewer at the end."""
        starts, row, rows = self._arrange(), max(start, 0), list[int]()
        stop = min(stop, self._num_rows)
        at = bisect_right(starts, row) - 1
        while row < stop:
            name = self._order[at]
            if row == starts[at]:
                rows.append(self._row_of(name))
                row += 1
            if name in self._unfolded:
                first = row - starts[at] - 1
                keys = self._unfolded[name].islice(first, first + stop - row)
                before = len(rows)
                rows += [key[-1] for key in keys]
                row += len(rows) - before
            at += 1
        return rows

    def index(self, row: int | None) -> int | None:
        """Returns the index of a row; `None` if it is not shown."""
        starts = self._arrange()
        if row is None:
            return None
        if (name := self._by_row.get(row)) is not None:
            return starts[self._order.index(name)] if name in self._order else None
        if row not in self._keys:
            return None
        name, key = self._keys[row]
        first = starts[self._order.index(name)]
        return first + 1 + int(self._unfolded[name].index(key))

    def _update(self, state: EngineData, touched: Iterable[int]) -> None:
        groups = self._groups
        assert groups is not None, "rows are grouped"
        shown: list[int] = []
        for seq_id in touched:
            if self._view.key_of(seq_id) is None:
                groups.discard(seq_id)
            else:
                shown.append(seq_id)
            if self._unfolded:
                self._forget(seq_id)
        before = len(groups.names)
        groups.update(state, shown)
        if self._unfolded:
            for seq_id in shown:
                self._remember(seq_id)
            self._starts = None
        if len(groups.names) != before or groups.names != {*self._order}:
            order = [name for name in self._order if name in groups.names]
            known = {*order}
            self._order = order + [name for name in groups.names if name not in known]
            self._starts = None

    def _remember(self, seq_id: int) -> None:
        assert self._groups is not None, "rows are grouped"
        name, key = self._groups.name_of(seq_id), self._view.key_of(seq_id)
        if name in self._unfolded and key is not None:
            self._unfolded[name].add(key)
            self._keys[seq_id] = name, key

    def _forget(self, seq_id: int) -> None:
        name, key = self._keys.pop(seq_id, ("", ()))
        if key:
            self._unfolded[name].remove(key)

    def _set_unfolded(self, name: str, is_unfolded: bool) -> None:
        if is_unfolded:
            self._unfolded[name] = SortedList()
            self._fill(name)
        else:
            for key in self._unfolded.pop(name):
                del self._keys[key[-1]]
        self._starts = None

    def _fill(self, name: str) -> None:
        """Places the rows of an unfolded group."""
        assert self._groups is not None, "rows are grouped"
        for key in self._unfolded[name]:
            self._keys.pop(key[-1], None)
        keys = [self._view.key_of(seq_id) for seq_id in self._groups.members(name)]
        self._unfolded[name] = SortedList(key for key in keys if key is not None)
        for key in self._unfolded[name]:
            self._keys[key[-1]] = name, key

    def _row_of(self, name: str) -> int:
        row = self._rows.get(name)
        if row is None:
            self._last_row -= 1
            row = self._rows[name] = self._last_row
            self._by_row[row] = name
        return row

    def _arrange(self) -> list[int]:
        """Returns the index of each group's row."""
        if self._starts is None:
            starts, row = list[int](), 0
            for name in self._order:
                self._row_of(name)
                starts.append(row)
                row += 1 + len(self._unfolded.get(name, ()))
            self._starts, self._num_rows = starts, row
        return self._starts
