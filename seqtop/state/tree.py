"""Trees of sequences: the sequences that answer one request, and their descent.

A tree has the parallel samples or the beams of one request. vLLM runs a request with `n` > 1 as
several requests with one `parent_request_id`; these are one tree, too.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias

from seqtop.state.model import EngineData, RequestState

_MAX_DEPTH = 8
"""The largest number of generations; later ones count as children of the last of these."""

TreeKey: TypeAlias = tuple[str, bool]
"""A request id, and whether its parts are requests of their own."""
Path: TypeAlias = tuple[int, ...]
"""The ids from the root of a tree down to a sequence."""


class TreePosition(NamedTuple):
    """The position of a shown sequence in the tree of its request."""

    parent: int | None = None
    rails: tuple[bool, ...] = ()
    """True for each generation, from below the root to this one, in which a sibling follows."""
    is_parent: bool = False
    num_folded: int = 0
    """Descendants that are hidden because this sequence is folded."""


class RequestTrees:
    """An index from sequences to trees, of all sequences added and not discarded."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, int]] = {}
        """The number of sequences of each part, by the id of the request and that of the part."""
        self._part_of: dict[int, tuple[str, str]] = {}

    def clear(self) -> None:
        """Removes all sequences."""
        self._parts.clear()
        self._part_of.clear()

    def add(self, request: RequestState, seq_id: int) -> TreeKey | None:
        """Adds a sequence of `request`, unless it has been added before.

        Returns:
            The key of its tree; `None` if it is the only sequence of a request without parts.
        """
        request_id = request.request_id
        whole = request.parent_request_id
        if not whole:
            return None if request.seq_ids == [seq_id] else (request_id, False)
        if seq_id not in self._part_of:
            self._part_of[seq_id] = whole, request.request_id
            parts = self._parts.setdefault(whole, {})
            parts[request.request_id] = parts.get(request.request_id, 0) + 1
        return whole, True

    def discard(self, seq_id: int) -> TreeKey | None:
        """Removes a sequence; returns the key of the tree that remains without it, if any."""
        part = self._part_of.pop(seq_id, None)
        if part is None:
            return None
        whole, request_id = part
        parts = self._parts[whole]
        parts[request_id] -= 1
        if not parts[request_id]:
            del parts[request_id]
        if not parts:
            del self._parts[whole]
            return None
        return whole, True

    def members(self, state: EngineData, key: TreeKey) -> list[int]:
        """Returns the ids of the sequences of a tree, the root first."""
        whole, has_parts = key
        seq_ids: list[int] = []
        for request_id in self._parts.get(whole, ()) if has_parts else (whole,):
            if request := state.requests.get(request_id):
                seq_ids += request.seq_ids
        return seq_ids


def paths(state: EngineData, members: Collection[int]) -> dict[int, Path]:
    """Returns the path from the root, which is the first of `members`, to each of them."""
    root = next(iter(members))
    paths: dict[int, Path] = {root: (root,)}
    own = set(members)

    def path(seq_id: int) -> Path:
        last = seq_id
        line = {last: None}  # ordered, and searched in constant time: it may be very long
        while last not in paths:
            parent = state.sequences[last].parent_seq_id
            # A sequence without a parent in this tree, or in a cycle, is a child of the root.
            last = parent if parent in own and parent not in line else root
            line[last] = None
        chain = list(line)
        for child, known in zip(chain[-2::-1], chain[:0:-1], strict=True):
            paths[child] = (*paths[known][: _MAX_DEPTH - 1], child)
        return paths[seq_id]

    return {seq_id: path(seq_id) for seq_id in members}


def tree_positions(shown: Iterable[Path], folded: Collection[int]) -> dict[int, TreePosition]:
    """Returns the positions of the sequences that end a path, if no folded ancestor hides them.

    A sequence whose parent is not shown moves up to its nearest shown ancestor.
    """
    ordered = sorted(shown)
    present = {path[-1] for path in ordered}
    lines = {path[-1]: [member for member in path if member in present] for path in ordered}
    counts: dict[int, int] = {}
    for line in lines.values():
        for ancestor in line[:-1]:
            counts[ancestor] = counts.get(ancestor, 0) + 1
    positions: dict[int, TreePosition] = {}
    follows: list[bool] = []
    for path in reversed(ordered):
        line = lines[path[-1]]
        depth = len(line) - 1
        if any(ancestor in folded for ancestor in line[:-1]):
            continue
        del follows[depth + 1 :]
        follows += [False] * (depth + 1 - len(follows))
        positions[path[-1]] = TreePosition(
            parent=line[-2] if depth else None,
            rails=tuple(follows[1:]),
            is_parent=path[-1] in counts,
            num_folded=counts.get(path[-1], 0) if path[-1] in folded else 0,
        )
        follows[depth] = True
    return positions
