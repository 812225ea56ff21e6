"""Which sequences belong together, and how they descend from one another.

A family is what answers one request: its parallel samples, its beams, or the requests
``<id>_parallel_sample_<i>`` that stand for one request with ``n`` > 1.
"""

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple, TypeAlias

from seqtop.state import EngineState
from seqtop.state.model import RequestState

_INFIX = "_parallel_sample_"
_PART = re.compile(rf"(.+){_INFIX}\d+", re.DOTALL)
_DEEPEST = 8
"""Generations that are told apart; later ones count as children of the last of these."""

Name: TypeAlias = tuple[str, bool]
"""A request id, and whether it is that of a whole whose parts are requests of their own."""
Path: TypeAlias = tuple[int, ...]
"""From the head of a family down to a sequence."""


class TreePosition(NamedTuple):
    """A sequence's place in the tree of its family, as far as that is shown."""

    parent: int | None = None
    rails: tuple[bool, ...] = ()
    """For each generation below the head down to this one, whether a sibling follows."""
    is_parent: bool = False
    num_folded: int = 0
    """How many descendants are out of sight because this one is folded."""


class SequenceTree:
    """Who is whose, of all sequences added and not discarded."""

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, int]] = {}
        """Wholes, each with its parts' request ids and how many sequences each has here."""
        self._part_of: dict[int, tuple[str, str]] = {}

    def clear(self) -> None:
        self._parts.clear()
        self._part_of.clear()

    def add(self, request: RequestState, seq_id: int) -> Name | None:
        """Count a sequence of `request` in, once.

        Returns the name of its family; `None` if it is the only one of a request of its own.
        """
        request_id = request.request_id
        part = _PART.fullmatch(request_id) if _INFIX in request_id else None
        if part is None:
            return None if request.seq_ids == [seq_id] else (request_id, False)
        whole = part[1]
        if seq_id not in self._part_of:
            self._part_of[seq_id] = whole, request.request_id
            parts = self._parts.setdefault(whole, {})
            parts[request.request_id] = parts.get(request.request_id, 0) + 1
        return whole, True

    def discard(self, seq_id: int) -> Name | None:
        """Forget a sequence; returns the name of the family it leaves behind, if any."""
        found = self._part_of.pop(seq_id, None)
        if found is None:
            return None
        whole, request_id = found
        parts = self._parts[whole]
        parts[request_id] -= 1
        if not parts[request_id]:
            del parts[request_id]
        if not parts:
            del self._parts[whole]
            return None
        return whole, True

    def members(self, state: EngineState, name: Name) -> list[int]:
        """The ids of a family's sequences, the head first."""
        of, is_whole = name
        found: list[int] = []
        for request_id in self._parts.get(of, ()) if is_whole else (of,):
            if request := state.requests.get(request_id):
                found += request.seq_ids
        return found


def paths(state: EngineState, members: Collection[int]) -> dict[int, Path]:
    """How each of `members` descends from the first; siblings sort by id, which is by birth."""
    head = next(iter(members))
    found: dict[int, Path] = {head: (head,)}
    own = set(members)

    def path(seq_id: int) -> Path:
        chain = [seq_id]
        while chain[-1] not in found:
            parent = state.sequences[chain[-1]].parent_seq_id
            # Whoever names no parent of this family, or goes round in a circle, is the head's.
            chain.append(parent if parent in own and parent not in chain else head)
        for child, known in zip(chain[-2::-1], chain[:0:-1], strict=True):
            found[child] = (*found[known][: _DEEPEST - 1], child)
        return found[seq_id]

    return {seq_id: path(seq_id) for seq_id in members}


def tree(shown: Iterable[Path], folded: Collection[int]) -> dict[int, TreePosition]:
    """The places of those that are in sight, of a family of which `shown` are to be shown."""
    ordered = sorted(shown)
    present = {path[-1] for path in ordered}
    lines = {path[-1]: [each for each in path if each in present] for path in ordered}
    counts: dict[int, int] = {}
    for line in lines.values():
        for ancestor in line[:-1]:
            counts[ancestor] = counts.get(ancestor, 0) + 1
    found: dict[int, TreePosition] = {}
    follows: list[bool] = []
    for path in reversed(ordered):
        line = lines[path[-1]]
        depth = len(line) - 1
        if any(ancestor in folded for ancestor in line[:-1]):
            continue
        del follows[depth + 1 :]
        follows += [False] * (depth + 1 - len(follows))
        found[path[-1]] = TreePosition(
            parent=line[-2] if depth else None,
            rails=tuple(follows[1:]),
            is_parent=path[-1] in counts,
            num_folded=counts.get(path[-1], 0) if path[-1] in folded else 0,
        )
        follows[depth] = True
    return found
