"""The index of who holds which block: always that of the tables as they are."""

from collections import defaultdict
from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.sequence import ExecuteModelRequest, SequenceStatus
from seqtop.state import EngineState
from seqtop.state.block_index import (
    MAX_BLOCKS,
    BlockIndex,
    BlockOwners,
    has_positions,
    spec_of_group,
)
from seqtop.state.model import CachedBlock
from seqtop.wire import codec, parsing
from seqtop.wire.messages import (
    CachedBlocks,
    EngineInfo,
    Event,
    RequestArrived,
    SequenceUpdate,
    Step,
)
from tests.support import events
from tests.support.random_engine import RandomEngine

BLOCKS = 24


def run(seed: int) -> list[Event]:
    script = RandomEngine(seed, 80, num_blocks=BLOCKS)
    return [parsing.event(codec.encode(event)) for event in script]


def holders(state: EngineState, num_device: int) -> dict[int, dict[int, int]]:
    """The same, worked out from every table."""
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for sequence in state.sequences.values():
        for place, block in enumerate(sequence.block_table):
            found[block][sequence.seq_id] = place
        for place, block in enumerate(sequence.host_table):
            found[num_device + block][sequence.seq_id] = place
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_index_follows_the_tables_and_tells_what_changed(seed: int) -> None:
    state, index = EngineState(), BlockIndex()
    before: dict[int, dict[int, int]] = {}
    num_swapped = 0
    for event in run(seed):
        touched = state.apply(event)
        if not index.fits(state):
            index.rebuild(state)
            before = holders(state, index.num_device)
        changed = index.update(state, touched)
        now = holders(state, index.num_device)
        differing = {
            block for block in before.keys() | now.keys() if before.get(block) != now.get(block)
        }
        assert differing <= changed
        for block in range(len(index)):
            assert dict(index.owners(block)) == now.get(block, {})
        num_swapped += index.num_swapped
        block_size = state.info.block_size if state.info else 0
        tables = [sequence for sequence in state.sequences.values() if sequence.block_table]
        assert index.num_unfilled == sum(
            max(len(table.block_table) * block_size - table.num_computed_tokens, 0)
            for table in tables
        )
        assert index.num_saved == sum(len(table.block_table) for table in tables) - len(
            {block for table in tables for block in table.block_table}
        )
        before = {block: dict(held) for block, held in now.items()}
    assert num_swapped


@given(
    updates=st.lists(st.tuples(st.integers(1, 4), st.lists(st.integers(0, 9), max_size=6))),
    grows=st.lists(st.booleans()),
    limit=st.sampled_from([-1, 0, 1, 4, 9, 10, 2**62]),
    some=st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_owners_are_those_of_the_tables_that_were_set(
    updates: list[tuple[int, list[int]]], grows: list[bool], limit: int, some: tuple[int, int]
) -> None:
    owners = BlockOwners()
    tables: dict[int, list[int]] = {}
    for (seq_id, blocks), is_grown in zip(updates, chain(grows, repeat(False)), strict=False):
        before = tables.get(seq_id, [])
        table = before + blocks if is_grown else blocks
        num_kept = len(before) if table[: len(before)] == before else 0
        positions, changed = owners.set_table(seq_id, table)
        assert positions == range(num_kept, len(table))
        assert changed == {*before[num_kept:], *table[num_kept:]}
        tables[seq_id] = table
        expected: dict[int, dict[int, int]] = defaultdict(dict)
        for other_id, other in tables.items():
            for position, block in enumerate(other):
                expected[block][other_id] = position
        assert [owners.of(block) for block in range(10)] == [
            expected.get(block, {}) for block in range(10)
        ]
        assert owners.among(range(*some)) == [
            expected[block] for block in range(*some) if block in expected
        ]
        below = [sorted(held.items()) for held in owners.below(limit)]
        assert sorted(below) == sorted(
            sorted(held.items()) for block, held in expected.items() if block < limit
        )
        assert owners.table(seq_id) == (table or ())
        assert (owners.num_blocks, owners.num_tables, owners.num_entries, owners.num_shared) == (
            len(expected),
            sum(map(bool, tables.values())),
            sum(map(len, expected.values())),
            sum(len(held) > 1 for held in expected.values()),
        )


def test_a_table_that_grows_changes_its_new_blocks_alone() -> None:
    state, index = EngineState(), BlockIndex()
    events = run(1)
    for event in events:
        grown = isinstance(event, Step) and {b for u in event.sequences for b in u.new_blocks}
        if grown and all(update.block_table is None for update in event.sequences):
            break
        state.apply(event)
    index.rebuild(state)
    assert index.update(state, state.apply(event)) == grown


def test_a_swapped_sequence_holds_the_host_blocks_its_own_went_to() -> None:
    state, index = swapped_state(), BlockIndex()
    index.rebuild(state)
    assert index.blocks(7) == [8 + 5, 8 + 2]
    assert dict(index.owners(8 + 2)) == dict(index.host_owners(2)) == {7: 1}
    assert index.held(range(8, 16)) == [{7: 1}, {7: 0}]
    assert index.held(range(11, 16)) == [{7: 0}]
    assert (index.num_swapped, len(index)) == (2, 16)
    assert index.first_block(7) == 13
    back = step(1, seq_update(SequenceStatus.RUNNING, table=[1, 2]))
    assert index.update(state, state.apply(back)) == {1, 2, 13, 10}
    assert index.blocks(7) == [1, 2]
    assert index.num_swapped == 0


def test_the_owners_of_blocks_that_are_held() -> None:
    first = step(0, seq_update(SequenceStatus.RUNNING, blocks=[1, 3]))
    state, index = state_after(first), BlockIndex()
    index.rebuild(state)
    assert index.held(range(5)) == [{7: 0}, {7: 1}]
    assert index.held(range(2, 3)) == []
    update = seq_update(SequenceStatus.RUNNING, group_block_tables=[[5], [6, 3]])
    state.apply(step(1, update))
    index.rebuild(state)
    assert [sorted(owners) for owners in index.held(range(7))] == [[7]] * 4


def test_an_index_is_empty_before_there_is_an_engine() -> None:
    state, index = EngineState(), BlockIndex()
    assert index.fits(state)
    assert (len(index), index.num_shared, index.num_saved, index.num_swapped) == (0, 0, 0, 0)
    assert (index.num_unfilled, index.num_held(), index.cached) == (0, 0, {})
    assert (index.blocks(7), index.first_block(7)) == ([], None)
    assert index.update(state, [7]) == set()


def test_reserved_blocks_do_not_count_as_shared() -> None:
    state, index = EngineState(), BlockIndex()
    info, arrival = started()
    info.num_reserved_blocks, info.num_cpu_blocks = 1, None
    state.apply(info)
    state.apply(arrival)
    updates = [
        seq_update(SequenceStatus.RUNNING, table=[0, 3, 4], group_block_tables=[[0, 6]]),
        seq_update(SequenceStatus.RUNNING, table=[0, 3, 5], group_block_tables=[[0, 6]]),
    ]
    updates[1].seq_id, updates[1].request_id = 8, "req"
    for number, late in enumerate(updates):
        state.apply(step(number, late))
    assert not index.fits(state)
    index.rebuild(state)
    assert index.fits(state)
    assert (len(index), index.num_reserved, index.num_host) == (8, 1, 0)
    assert (index.num_shared, index.num_saved) == (2, 2)
    assert [index.num_held(first=first) for first in (1, 4, 6, 7)] == [4, 3, 1, 0]
    assert (index.first_block(7), dict(index.table_owners(3))) == (0, {7: 1, 8: 1})
    assert dict(index.table_owners(6)) == {}
    assert dict(index.device_owners(6)) == {7: 1, 8: 1}
    assert dict(index.device_owners(0)) == {7: 0, 8: 0}


def test_the_index_has_the_blocks_of_the_state_for_which_it_was_built() -> None:
    index = BlockIndex()
    event = step(0, seq_update(SequenceStatus.RUNNING, blocks=[1]))
    event.newly_cached_blocks = [CachedBlocks(request_id="req", seq_id=7, position=0, blocks=[1])]
    state = state_after(event)
    index.rebuild(state)
    assert index.cached == state.cached_blocks == {1: CachedBlock("req", 7, 0)}
    assert index.num_held() == 1
    index.rebuild(EngineState())
    assert (index.cached, index.num_held(), len(index)) == ({}, 0, 0)


def test_an_update_changes_the_tables_of_all_groups_and_the_unfilled_slots() -> None:
    first = step(0, seq_update(SequenceStatus.RUNNING, blocks=[0, 2]))
    state, index = state_after(first), BlockIndex()
    index.rebuild(state)
    assert index.num_unfilled == 2 * 16 - 20
    update = seq_update(SequenceStatus.RUNNING, group_block_tables=[[5]])
    update.num_computed_tokens = 22
    assert index.update(state, state.apply(step(1, update))) == {5}
    assert (index.num_unfilled, index.num_held()) == (2 * 16 - 22, 3)
    update = seq_update(SequenceStatus.RUNNING, group_block_tables=[])
    update.num_computed_tokens = 40
    assert index.update(state, state.apply(step(2, update))) == {5}
    assert (index.num_unfilled, index.num_held()) == (0, 2)
    update = seq_update(SequenceStatus.RUNNING, is_removed=True)
    assert index.update(state, state.apply(step(3, update))) == {0, 2}
    assert (index.blocks(7), index.first_block(7)) == ([], None)
    assert (index.num_unfilled, index.num_held()) == (0, 0)


def test_blocks_of_further_kv_cache_groups_are_in_it() -> None:
    update = seq_update(SequenceStatus.RUNNING, blocks=[1, 2], group_block_tables=[[5], [6, 7]])
    state, index = state_after(step(0, update)), BlockIndex()
    index.rebuild(state)
    assert index.blocks(7) == [1, 2, 5, 6, 7]
    assert dict(index.owners(6)) == {7: 1}


@pytest.mark.parametrize("number", [-1, 2**40])
def test_no_size_of_a_pool_is_believed_blindly(number: int) -> None:
    state, index = EngineState(), BlockIndex()
    info = started()[0]
    info.num_gpu_blocks = info.num_cpu_blocks = info.num_reserved_blocks = number
    state.apply(info)
    index.rebuild(state)
    assert 0 <= len(index) <= 2 * MAX_BLOCKS
    assert index.num_shared == 0


def test_at_most_sixteen_blocks_are_reserved() -> None:
    state, index = EngineState(), BlockIndex()
    info = started()[0]
    info.num_gpu_blocks = 100
    state.apply(info)
    for number, expected in ((-1, 0), (1, 1), (16, 16), (17, 16)):
        info.num_reserved_blocks = number
        index.rebuild(state)
        assert index.num_reserved == expected


def started() -> list[Event]:
    """An engine with eight blocks, eight more on the host, and sequence 7."""
    info = next(event for event in run(1) if isinstance(event, EngineInfo))
    info.num_gpu_blocks = info.num_cpu_blocks = 8
    return [
        info,
        RequestArrived(request_id="req", arrival_time=1.0, seq_ids=[7], num_prompt_tokens=20),
    ]


def state_after(*steps: Step) -> EngineState:
    """The state of the engine that `started` describes, after these steps."""
    state = EngineState()
    for event in (*started(), *steps):
        state.apply(event)
    return state


def swapped_state() -> EngineState:
    return state_after(
        step(0, seq_update(SequenceStatus.RUNNING, blocks=[3, 4])),
        step(1, seq_update(SequenceStatus.SWAPPED, table=[]), [(3, 5), (4, 2)]),
    )


def seq_update(status: SequenceStatus, **changes: Any) -> SequenceUpdate:
    return events.update(7, status, 20, **changes)


def step(
    number: int, update: SequenceUpdate, swapped_out: list[tuple[int, int]] | None = None
) -> Step:
    stats = next(event for event in run(1) if isinstance(event, Step)).stats
    preemptions = [events.preemption("req", mode="swap")]
    return events.step(
        number,
        start_time=2.0 + number,
        time=2.5 + number,
        execute=ExecuteModelRequest([], blocks_to_swap_out=swapped_out or []),
        sequences=[update],
        stats=stats,
        preemptions=preemptions if swapped_out else [],
    )


@pytest.mark.parametrize(
    ("of_engine", "sizes"),
    [((0, None, 0), (0, 0, 0)), ((-5, -3, -1), (0, 0, 0)), ((6, 4, 2), (6, 4, 2))],
)
def test_pools_have_the_sizes_of_the_engine_as_far_as_they_can_be(
    of_engine: tuple[int, int | None, int], sizes: tuple[int, int, int]
) -> None:
    state, index = EngineState(), BlockIndex()
    num_gpu, num_cpu, num_reserved = of_engine
    info = events.engine_info(
        num_gpu_blocks=num_gpu, num_cpu_blocks=num_cpu, num_reserved_blocks=num_reserved
    )
    state.apply(info)
    index.rebuild(state)
    assert (index.num_device, index.num_host, index.num_reserved) == sizes
    assert len(index) == sizes[0] + sizes[1]


def test_specifications_are_found_by_the_group_of_the_first_table() -> None:
    info = events.engine_info(
        kv_cache_groups=["full", "other"],
        kv_cache_specs=[{"kind": "ring", "has_positions": False}, {"kind": "full"}],
    )
    assert [spec_of_group(info, group) for group in range(3)] == [
        {"kind": "full"},
        {"kind": "ring", "has_positions": False},
        {},
    ]
    assert [has_positions(info, group) for group in range(3)] == [True, False, True]
    assert has_positions(None)
    assert has_positions(events.engine_info())  # an engine that does not describe them
