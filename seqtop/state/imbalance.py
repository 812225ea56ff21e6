"""Imbalance of engines of one group: requests wait for one while another has room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from seqtop.state.condition import kv_use
from seqtop.state.summary import group_of
from seqtop.text import format as fmt
from seqtop.wire.messages import EngineSummary

_LEAST_WAITING = 3
"""Requests that wait for one engine, at least."""
_FULL, _ROOM = 0.8, 0.5
"""The use of the KV pool, or of the sequence slots, from which on an engine is full, and up to
which it has room."""


class NamedEngine(NamedTuple):
    """An engine, and the name that a person knows it by."""

    name: str
    summary: EngineSummary


def imbalance(engines: Sequence[NamedEngine], full: EngineSummary | None = None) -> str:
    """Returns a sentence on a full engine beside one with room; empty without such a pair.

    Args:
        engines: The engines. Those of one group may serve each other's requests.
        full: The full one, if only one of them is asked for.
    """
    # Of a hundred engines there are ten thousand pairs, and most have no part in one.
    with_queue = [
        own
        for own in engines
        if (full is None or full is own.summary)
        and _num_waiting(own.summary) >= _LEAST_WAITING
        and _use(own.summary) >= _FULL
    ]
    with_room = [
        own for own in engines if not _num_waiting(own.summary) and _use(own.summary) <= _ROOM
    ]
    pairs = [
        (_num_waiting(one.summary), one, other)
        for one in with_queue
        for other in with_room
        if group_of(one.summary) == group_of(other.summary)
    ]
    if not pairs:
        return ""
    _, fullest, idle = max(pairs, key=lambda pair: (pair[0], -_use(pair[2].summary)))
    more = len({id(other) for _, one, other in pairs if one is fullest}) - 1
    others = f" and {fmt.plural(more, 'other engine')}" if more else ""
    return f"{_describe(fullest)} is full beside {_describe(idle)}{others}"


def _num_waiting(engine: EngineSummary) -> int:
    """Returns the number of sequences that wait for their turn."""
    return max(engine.num_waiting + engine.num_swapped - engine.num_parked, 0)


def _use(engine: EngineSummary) -> float:
    """Returns the use of the KV pool or of the sequence slots, whichever is larger."""
    slots = engine.num_running / engine.max_num_seqs if engine.max_num_seqs > 0 else 0.0
    return max(kv_use(engine, engine) or 0.0, slots)


def _describe(named: NamedEngine) -> str:
    name, engine = named
    rank = "" if engine.data_parallel_rank is None else f"rank {engine.data_parallel_rank}, "
    if engine.num_used_blocks is None:
        return f"{name} ({rank}without a step so far)"
    return (
        f"{name} ({rank}{_num_waiting(engine):,} waiting, KV {fmt.percent(kv_use(engine, engine))})"
    )
