"""Groups of requests, and the figures of each: who takes most of the KV cache."""

from __future__ import annotations

import re
import statistics

import msgspec

from seqtop.sequence import SequenceStatus, latency
from seqtop.state.fields import FIELDS, waited
from seqtop.state.filter import NO_FILTER, Filter
from seqtop.state.model import EngineData, RequestState, SequenceState

PREFIX = "prefix"
"""The key of groups by the id of the request up to its first separator."""
KEYS = (PREFIX, "status", "stage", "prio", "why", "lora")
"""The keys that requests can be grouped by: `PREFIX`, and keys of fields."""
_SEPARATOR = re.compile(r"[-_.:/#]")


class Group(msgspec.Struct):
    """The sums of the requests of one group; those of a filter, if there is one."""

    name: str
    """The value of the key; empty if the requests have none."""
    num_requests: int = 0
    num_running: int = 0
    """Running sequences."""
    num_waiting: int = 0
    """Waiting and swapped sequences."""
    num_blocks: int = 0
    """Blocks of the KV cache in tables of the group, each counted once. Groups may share some."""
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    waited: float = 0.0
    """The seconds that its requests have waited in the queue, together."""
    ttft: float | None = None
    """The median time to first token in seconds; `None` if there is none yet."""


def group_name(key: str, request: RequestState, sequence: SequenceState, now: float) -> str:
    """Returns the group of a request.

    Args:
        key: One of `KEYS`.
        request: The request.
        sequence: A sequence of it.
        now: The engine's time, epoch seconds.
    """
    if key == PREFIX:
        return _SEPARATOR.split(request.request_id, maxsplit=1)[0]
    value = FIELDS[key].value(request, sequence, now)
    return "" if value is None else str(value)


def group_by(state: EngineData, key: str, filter_: Filter = NO_FILTER) -> list[Group]:
    """Returns the groups of the requests in a state, those with the most blocks first.

    A request whose sequences differ is in the group of each, and counts in each.

    Args:
        state: The state.
        key: One of `KEYS`.
        filter_: The sequences to count.
    """
    groups: dict[str, Group] = {}
    blocks: dict[str, set[tuple[int, int]]] = {}
    ttfts: dict[str, list[float]] = {}
    for request in state.requests.values():
        names: set[str] = set()
        for seq_id in request.seq_ids:
            sequence = state.sequences.get(seq_id)
            if sequence is None or not filter_.matches(request, sequence, state.time):
                continue
            name = group_name(key, request, sequence, state.time)
            group = groups.setdefault(name, Group(name))
            _add_sequence(group, sequence)
            tables = (sequence.block_table, *sequence.group_block_tables)
            blocks.setdefault(name, set()).update(
                (number, block) for number, table in enumerate(tables) for block in table
            )
            if name not in names:
                names.add(name)
                group.num_requests += 1
                group.num_prompt_tokens += request.num_prompt_tokens
                group.num_preemptions += request.num_preemptions
                group.waited += waited(request, state.time)
                if (ttft := latency.ttft(request.metrics)) is not None:
                    ttfts.setdefault(name, []).append(ttft)
    for name, group in groups.items():
        group.num_blocks = len(blocks[name])
        group.ttft = statistics.median(ttfts[name]) if name in ttfts else None
    return sorted(groups.values(), key=lambda group: (-group.num_blocks, -group.num_requests))


def _add_sequence(group: Group, sequence: SequenceState) -> None:
    group.num_output_tokens += len(sequence.output_token_ids)
    if sequence.status is SequenceStatus.RUNNING:
        group.num_running += 1
    elif sequence.status in (SequenceStatus.WAITING, SequenceStatus.SWAPPED):
        group.num_waiting += 1
