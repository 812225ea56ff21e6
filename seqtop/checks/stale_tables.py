"""Blocks that a table of a second KV-cache group still names although they are not its any more.

A pool is shared by the groups of layers of a model, and each group has block tables of its own. A
table is stale if it names a block that another table has at another place, or one behind the
window of its layers, which the engine has freed.
"""

from __future__ import annotations

from typing import NamedTuple

from seqtop.checks.block_tables import num_equal_tokens
from seqtop.state import EngineState
from seqtop.state.block_index import has_positions, spec_of_group
from seqtop.state.model import SequenceState
from seqtop.wire.messages import EngineInfo, Setting


class Place(NamedTuple):
    """A place in a block table."""

    seq_id: int
    group: int
    """The number of the KV-cache group; the first is 0."""
    position: int


class StaleTable(NamedTuple):
    """The blocks that a table names wrongly."""

    sequence: SequenceState
    group: int
    blocks: list[int]
    holder: tuple[int, SequenceState] | None
    """One of these blocks that another sequence has, too, and that sequence; `None` if none is."""


def stale_tables(state: EngineState) -> list[StaleTable]:
    """Returns the stale tables of second and later groups; O(number of blocks in tables)."""
    info = state.info
    if info is None or len(info.kv_cache_groups) < 2:
        return []
    places: dict[int, list[Place]] = {}
    for sequence in state.sequences.values():
        for group, table in enumerate((sequence.block_table, *sequence.group_block_tables)):
            for position, block in enumerate(table):
                if block >= info.num_reserved_blocks:
                    places.setdefault(block, []).append(Place(sequence.seq_id, group, position))
    wrong: dict[tuple[int, int], dict[int, int | None]] = {}
    """By sequence and group, the blocks, each with the other sequence that has it."""
    for block, named in places.items():
        for own in named:
            if own.group == 0:
                continue
            others = [other for other in named if other is not own]
            holder = next((other for other in others if not _may_share(state, own, other)), None)
            if holder is not None or _is_behind_window(state, info, own):
                blocks = wrong.setdefault((own.seq_id, own.group), {})
                blocks[block] = None if holder is None else holder.seq_id
    return [
        StaleTable(state.sequences[seq_id], group, list(blocks), _holder(state, seq_id, blocks))
        for (seq_id, group), blocks in wrong.items()
    ]


def _holder(
    state: EngineState, seq_id: int, blocks: dict[int, int | None]
) -> tuple[int, SequenceState] | None:
    for block, other in blocks.items():
        if other is not None and other != seq_id:
            return block, state.sequences[other]
    return None


def _may_share(state: EngineState, one: Place, other: Place) -> bool:
    """Returns whether two tables may name the same block: for equal tokens in the same group."""
    info = state.info
    if info is None or one.group != other.group or one.seq_id == other.seq_id:
        return False
    if not has_positions(info, one.group):
        return True
    if one.position != other.position:
        return False
    sequences = state.sequences[one.seq_id], state.sequences[other.seq_id]
    size = _number(spec_of_group(info, one.group).get("block_size")) or info.block_size
    computed = min(sequence.num_computed_tokens for sequence in sequences)
    end = min((one.position + 1) * size, computed)
    num_equal = num_equal_tokens(state, *sequences, end)
    return num_equal is None or num_equal >= end


def _is_behind_window(state: EngineState, info: EngineInfo, place: Place) -> bool:
    """Returns whether all tokens of a block are behind the window of the next token."""
    spec = spec_of_group(info, place.group)
    window = _number(spec.get("sliding_window"))
    size = _number(spec.get("block_size")) or info.block_size
    if not window or size < 1 or not has_positions(info, place.group):
        return False
    num_computed = state.sequences[place.seq_id].num_computed_tokens
    return (place.position + 1) * size <= num_computed - window


def _number(value: Setting) -> int:
    return int(value) if isinstance(value, int | float) and value > 0 else 0
