"""Sort keys of sequences: by the value of a field, or by lifecycle."""

import math
import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, TypeAlias

from seqtop.sequence import SequenceStatus
from seqtop.state.fields import FIELDS, Value
from seqtop.state.model import EngineData, RequestState, SequenceState
from seqtop.wire.messages import EngineInfo

SortKey: TypeAlias = tuple[Any, ...]
"""A flat tuple that compares as its sequence is ordered."""

_DIGITS = re.compile(r"(\d+)")
_MAX_TEXT = 200
"""Characters of a text that are compared."""


@dataclass(frozen=True)
class Sort:
    """A sort order: by the field named `key`, or by lifecycle if `key` is empty.

    By lifecycle, running sequences come first in order of arrival, then the waiting and swapped in
    the order of the queue, then the finished, latest first. So a row stays in its place until the
    status of its sequence changes.
    """

    key: str = ""
    descending: bool = False


def sort_key(
    state: EngineData, request: RequestState, sequence: SequenceState, sort: Sort, now: float
) -> SortKey:
    """Returns the key that orders `sequence` by `sort` at the engine's time (epoch seconds)."""
    field = FIELDS.get(sort.key)
    if field is None:
        place = _lifecycle_key(state, request, sequence)
        return (_Reversed(place),) if sort.descending else place
    key = _comparable(field.sort_value(request, sequence, now))
    if key is None:
        return (1,)
    if sort.descending:
        return (0, -key if isinstance(key, float) else _Reversed(key))
    return (0, key)


def grows(request: RequestState, sequence: SequenceState, sort: Sort) -> bool:
    """Returns whether the value that `sequence` is sorted by grows as time passes."""
    field = FIELDS.get(sort.key)
    return field is not None and field.grows is not None and field.grows(request, sequence)


def has_priorities(info: EngineInfo) -> bool:
    """Returns whether the priority of a request decides its position in the waiting queue."""
    return info.queue_order in ("priority", "priority_alone")


def holders_are_first(info: EngineInfo) -> bool:
    """Returns whether waiting requests that hold blocks come before all others."""
    return info.queue_order in ("priority", "fcfs")


def arrival_in_queue(request: RequestState) -> float:
    """Returns the time by which an engine orders waiting requests of equal priority."""
    renewed = request.renewed_arrival_time
    return request.metrics.arrival_time if renewed is None else renewed


def queue_key(state: EngineData, request: RequestState) -> SortKey:
    """Returns the key that orders waiting requests as the engine will schedule them."""
    info = state.info
    if info is None or has_priorities(info):
        turn: SortKey = request.priority, _ordered(arrival_in_queue(request))
    else:
        turn = (request.queue_turn,)
    if info is not None and not holders_are_first(info):
        return turn
    # vLLM admits requests first that hold blocks already, such as those that were loaded.
    holds_blocks = any(state.sequences[seq_id].block_table for seq_id in request.seq_ids)
    return (not holds_blocks, *turn)


def _lifecycle_key(state: EngineData, request: RequestState, sequence: SequenceState) -> SortKey:
    if SequenceStatus.is_finished(sequence.status):
        return (2, -_ordered(request.metrics.finished_time or request.metrics.last_token_time))
    if sequence.status == SequenceStatus.RUNNING:
        return (0, _ordered(request.metrics.arrival_time))
    return (1, *queue_key(state, request))


def _comparable(value: Value) -> float | SortKey | None:
    """Returns a value that orders `req-7` before `req-10`; numbers become floats."""
    if not isinstance(value, str):
        return None if value is None else _ordered(value)
    parts = _DIGITS.split(value[:_MAX_TEXT].casefold())
    return tuple(int(part) if index % 2 else part for index, part in enumerate(parts))


def _ordered(value: float) -> float:
    """Returns a float with a total order: NaN counts as zero."""
    number = float(value)
    return 0.0 if math.isnan(number) else number


@total_ordering
class _Reversed:
    """A key with the opposite order."""

    __slots__ = ("key",)

    def __init__(self, key: SortKey) -> None:
        self.key = key

    def __lt__(self, other: "_Reversed") -> bool:
        return bool(other.key < self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.key == other.key
