"""Imbalance of engines that serve the same model: requests wait for one while another has room."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import NamedTuple

from seqtop.sequence import SequenceStatus
from seqtop.state.condition import kv_use
from seqtop.state.model import EngineData
from seqtop.text import format as fmt

_LEAST_WAITING = 3
"""Requests that wait for one engine, at least."""
_FULL, _ROOM = 0.8, 0.5
"""The use of the KV pool, or of the sequence slots, from which on an engine is full, and up to
which it has room."""


class NamedEngine(NamedTuple):
    """An engine, and the name that a person knows it by."""

    name: str
    state: EngineData


def imbalance(engines: Sequence[NamedEngine], full: EngineData | None = None) -> str:
    """Returns a sentence on a full engine beside one with room; empty without such a pair.

    Args:
        engines: The engines. Those of one model may serve each other's requests.
        full: The full one, if only one of them is asked for.
    """
    pairs = [
        (waiting, one, other)
        for one, other in permutations(engines, 2)
        if (full is None or full is one.state)
        and _serves_the_same(one.state, other.state)
        and (waiting := _num_waiting(one.state)) >= _LEAST_WAITING
        and _use(one.state) >= _FULL
        and not _num_waiting(other.state)
        and _use(other.state) <= _ROOM
    ]
    if not pairs:
        return ""
    _, fullest, idle = max(pairs, key=lambda pair: (pair[0], -_use(pair[2].state)))
    more = len({id(other) for _, one, other in pairs if one is fullest}) - 1
    others = f" and {fmt.plural(more, 'other engine')}" if more else ""
    return f"{_describe(fullest)} is full beside {_describe(idle)}{others}"


def _serves_the_same(one: EngineData, other: EngineData) -> bool:
    return one.info is not None and other.info is not None and one.info.model == other.info.model


def _num_waiting(state: EngineData) -> int:
    """Returns the number of sequences that wait for their turn."""
    counts = state.num_by_status
    waiting = counts[SequenceStatus.WAITING] + counts[SequenceStatus.SWAPPED]
    return max(waiting - sum(state.num_parked.values()), 0)


def _use(state: EngineData) -> float:
    """Returns the use of the KV pool or of the sequence slots, whichever is larger."""
    info, stats = state.info, state.stats
    if info is None or stats is None:
        return 0.0
    slots = stats.num_running / info.max_num_seqs if info.max_num_seqs > 0 else 0.0
    return max(kv_use(stats, info) or 0.0, slots)


def _describe(engine: NamedEngine) -> str:
    state = engine.state
    info, stats = state.info, state.stats
    if info is None:
        return ""
    rank = "" if info.data_parallel_rank is None else f"rank {info.data_parallel_rank}, "
    if stats is None:
        return f"{engine.name} ({rank}without a step so far)"
    return (
        f"{engine.name} ({rank}{_num_waiting(state):,} waiting, KV"
        f" {fmt.percent(kv_use(stats, info))})"
    )
