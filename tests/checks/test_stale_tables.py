"""Stale tables of a second KV-cache group, of states made by hand: blocks of four tokens."""

from __future__ import annotations

from typing import Any

import pytest

from seqtop.checks.stale_tables import stale_tables
from seqtop.sequence import SequenceStatus
from seqtop.state import EngineState
from seqtop.wire.arrays import Ints
from tests.support.events import arrival, engine_info, step, update

TOKENS = [*range(16)]


def tables_of(
    *sequences: tuple[list[int], list[int]], prompts: Any = (TOKENS, TOKENS), **changes: Any
) -> EngineState:
    """Returns a state in which each sequence, of 16 computed tokens, has a table of both groups."""
    settings: dict[str, Any] = {
        "block_size": 4,
        "num_reserved_blocks": 1,
        "kv_cache_groups": ["full", "window"],
        "kv_cache_specs": [{"kind": "full"}, {"kind": "window", "sliding_window": 8}],
    }
    state = EngineState()
    state.apply(engine_info(**(settings | changes)))
    updates = []
    for seq_id, ((table, window), prompt) in enumerate(zip(sequences, prompts, strict=False), 1):
        arrived = arrival(seq_id)
        arrived.num_prompt_tokens, arrived.prompt_token_ids = len(prompt), Ints.of(prompt)
        state.apply(arrived)
        running = update(seq_id, SequenceStatus.RUNNING, 16, table=table)
        running.group_block_tables = [window]
        updates.append(running)
    state.apply(step(0, sequences=updates))
    return state


def found(state: EngineState) -> list[tuple[int, int, list[int], tuple[int, int] | None]]:
    """Returns the sequence, group, blocks and holder of each stale table."""
    return [
        (
            own.sequence.seq_id,
            own.group,
            own.blocks,
            own.holder and (own.holder[0], own.holder[1].seq_id),
        )
        for own in stale_tables(state)
    ]


MAIN, OTHER = [1, 2, 3, 4], [11, 12, 13, 14]


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        # The window of the next token begins with the third block.
        (([0, 0, 7, 8], [0, 0, 17, 18]), []),
        (([5, 6, 7, 8], [0, 0, 17, 18]), [(1, 1, [5, 6], None)]),
        # Two sequences of equal tokens may share a block in one place.
        (([0, 0, 7, 8], [0, 0, 7, 18]), []),
        (([0, 0, 7, 8], [0, 0, 18, 7]), [(1, 1, [7], (7, 2)), (2, 1, [7], (7, 1))]),
        # A block of the first group is no other group's, even of the same sequence.
        (([0, 0, 4, 8], [0, 0, 17, 18]), [(1, 1, [4], None)]),
        (([0, 0, 14, 8], [0, 0, 17, 18]), [(1, 1, [14], (14, 2))]),
        # The first block that is not reserved is as any other.
        (([0, 0, 1, 8], [0, 0, 17, 18]), [(1, 1, [1], None)]),
    ],
)
def test_blocks_that_are_another_tables_or_behind_the_window_are_stale(
    windows: tuple[list[int], list[int]], expected: list[Any]
) -> None:
    assert found(tables_of((MAIN, windows[0]), (OTHER, windows[1]))) == expected


def test_only_equal_prefixes_share_a_block_of_a_group() -> None:
    sequences = (MAIN, [0, 0, 7, 8]), (OTHER, [0, 0, 7, 18])
    later = [*TOKENS[:12], 99, 99, 99, 99]
    assert found(tables_of(*sequences, prompts=(TOKENS, later))) == []
    different = [*TOKENS[:11], 99, 99, 99, 99, 99]
    assert found(tables_of(*sequences, prompts=(TOKENS, different))) == [
        (1, 1, [7], (7, 2)),
        (2, 1, [7], (7, 1)),
    ]


def test_tables_of_one_group_are_not_compared() -> None:
    stale = (MAIN, [5, 6, 7, 8])
    assert found(tables_of(stale, kv_cache_groups=["full"])) == []


def test_a_window_of_one_token_needs_the_last_block_alone() -> None:
    specs = [{"kind": "full"}, {"kind": "window", "sliding_window": 1}]
    assert found(tables_of((MAIN, [0, 0, 7, 8]), kv_cache_specs=specs)) == [(1, 1, [7], None)]


def test_the_tokens_of_blocks_without_positions_are_not_compared() -> None:
    specs = [{"kind": "full"}, {"kind": "mamba", "has_positions": False}]
    sequences, others = ((MAIN, [7]), (OTHER, [7])), [99, *TOKENS[1:]]
    assert found(tables_of(*sequences, prompts=(TOKENS, others), kv_cache_specs=specs)) == []
