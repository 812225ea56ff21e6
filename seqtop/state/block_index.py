"""An index from the blocks of the KV pools to the sequences that hold them.

It inverts the block tables of a state. The cost of an update depends on the tables that changed,
not on the size of the pools. Blocks are numbered through both pools: those of the device first,
then those in host memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from seqtop.state.model import CachedBlock, EngineData, SequenceState
from seqtop.wire.messages import EngineInfo, Setting

MAX_BLOCKS = 2**31
"""The largest pool size accepted from an engine."""
_MAX_RESERVED = 16
_NO_OWNERS: Mapping[int, int] = {}


class TableChange(NamedTuple):
    """The difference between a sequence's tables and those in the index."""

    new_positions: range
    """Logical positions of `block_table` that name another block than before."""
    blocks: set[int]
    """The blocks that the sequence got or released, numbered as in `BlockIndex`."""


class BlockIndex:
    """An index over the block tables of an `EngineState`."""

    def __init__(self) -> None:
        self.num_device = 0
        """Blocks of the device's pool."""
        self.num_host = 0
        """Blocks in host memory to swap to."""
        self.num_reserved = 0
        """The device's first blocks, which no sequence can hold."""
        self.cached: Mapping[int, CachedBlock] = {}
        """The device's blocks in the prefix cache, if the engine reports them."""
        self._clear()

    def __len__(self) -> int:
        return self.num_device + self.num_host

    @property
    def num_shared(self) -> int:
        """Blocks of the device that several sequences hold; reserved blocks do not count."""
        reserved = sum(len(owners) > 1 for owners in self._reserved())
        return self._device.num_shared + self._groups.num_shared - reserved

    @property
    def num_saved(self) -> int:
        """Blocks of the device that sharing saves: those that owners would need beyond the first.

        Reserved blocks do not count.
        """
        saved = sum(len(owners) - 1 for owners in self._reserved())
        pools = (self._device, self._groups)
        return sum(pool.num_entries - pool.num_blocks for pool in pools) - saved

    @property
    def num_swapped(self) -> int:
        """Blocks in host memory that a sequence holds."""
        return self._host.num_blocks

    @property
    def num_swapped_tables(self) -> int:
        """Sequences that hold blocks in host memory."""
        return self._host.num_tables

    def num_held(self, *, first: int = 0) -> int:
        """Returns the number of blocks on the device from `first` on that some table names.

        The pool size that the engine reports does not limit this number.
        """
        pools = (self._device, self._groups)
        below = sum(1 for pool in pools for _ in pool.below(first))
        return sum(pool.num_blocks for pool in pools) - below

    def owners(self, block: int) -> Mapping[int, int]:
        """Returns the sequences that hold a block, each with its position in `blocks`."""
        if block < self.num_device:
            return self.device_owners(block)
        return self.host_owners(block - self.num_device)

    def held(self, blocks: range) -> list[Mapping[int, int]]:
        """Returns the owners of each of `blocks`, all in one pool, that a sequence holds."""
        if blocks.start >= self.num_device:
            first = self.num_device
            return self._host.among(range(blocks.start - first, blocks.stop - first))
        if self._groups.num_blocks:
            return [owners for owners in map(self.device_owners, blocks) if owners]
        return self._device.among(blocks)

    def device_owners(self, block: int) -> Mapping[int, int]:
        """Returns the owners of a block of the device, even one beyond the size of the pool."""
        return self._device.of(block) or self._groups.of(block)

    def host_owners(self, block: int) -> Mapping[int, int]:
        """Returns the owners of a block in host memory, numbered from 0 as in its pool."""
        return self._host.of(block)

    def table_owners(self, block: int) -> Mapping[int, int]:
        """Returns the sequences whose `block_table` names a block, with its logical position."""
        return self._device.of(block)

    def blocks(self, seq_id: int) -> list[int]:
        """Returns the blocks that a sequence holds, in logical order, group by group."""
        swapped = self._host.table(seq_id)
        return [
            *self._device.table(seq_id),
            *self._groups.table(seq_id),
            *(self.num_device + block for block in swapped),
        ]

    def first_block(self, seq_id: int) -> int | None:
        """Returns the first of a sequence's blocks, if it holds any."""
        for pool, offset in ((self._device, 0), (self._host, self.num_device)):
            if table := pool.table(seq_id):
                return offset + table[0]
        return None

    def fits(self, state: EngineData) -> bool:
        """Returns whether the pools have the same sizes as those of `state`."""
        return (self.num_device, self.num_host, self.num_reserved) == _sizes(state)

    def rebuild(self, state: EngineData) -> None:
        """Indexes all tables of `state`, and sets the sizes of the pools."""
        self.num_device, self.num_host, self.num_reserved = _sizes(state)
        self._clear()
        self._block_size = state.info.block_size if state.info else 0
        self.update(state, state.sequences)

    def update(self, state: EngineData, touched: Iterable[int]) -> set[int]:
        """Indexes the tables of the sequences `touched`; returns the blocks that changed owners."""
        self.cached = state.cached_blocks or {}
        changed: set[int] = set()
        for seq_id in touched:
            changed |= self.set_tables(seq_id, state.sequences.get(seq_id)).blocks
        return changed

    def set_tables(self, seq_id: int, sequence: SequenceState | None) -> TableChange:
        """Indexes the tables of one sequence; `None` if it left the state."""
        if sequence is None:
            table, group_blocks, host_table = [], [], []
        else:
            table, host_table = sequence.block_table, sequence.host_table
            group_blocks = [block for table in sequence.group_block_tables for block in table]
        new_positions, changed = self._device.set_table(seq_id, table)
        if group_blocks or self._groups.num_tables:
            changed |= self._groups.set_table(seq_id, group_blocks)[1]
        num_slots = len(table) * self._block_size
        unfilled = max(num_slots - sequence.num_computed_tokens, 0) if sequence else 0
        self.num_unfilled += unfilled - self._unfilled.pop(seq_id, 0)
        if unfilled:
            self._unfilled[seq_id] = unfilled
        if host_table or self._host.num_tables:
            _, on_host = self._host.set_table(seq_id, host_table)
            changed.update(self.num_device + block for block in on_host)
        return TableChange(new_positions, changed)

    def _reserved(self) -> Iterator[Mapping[int, int]]:
        """Returns the owners of each reserved block, in the first group and in the others."""
        return chain.from_iterable(
            pool.below(self.num_reserved) for pool in (self._device, self._groups)
        )

    def _clear(self) -> None:
        self._device, self._groups, self._host = BlockOwners(), BlockOwners(), BlockOwners()
        self._block_size = 0
        self.num_unfilled = 0
        """Slots of the device's blocks that their sequences hold and have no token for."""
        self._unfilled: dict[int, int] = {}
        """Unfilled slots by sequence id."""


class BlockOwners:
    """The owners of the blocks of one pool, updated table by table.

    A table that has only grown costs as much as its new blocks.
    """

    def __init__(self) -> None:
        self._owners: dict[int, _Owner | dict[int, int]] = {}
        """A tuple for one owner, since a dictionary takes four times as much."""
        self._tables: dict[int, list[int]] = {}
        self.num_shared = 0
        """Blocks that several sequences hold."""
        self.num_entries = 0
        """The entries of all tables; a block in two tables counts twice."""

    @property
    def num_blocks(self) -> int:
        """Blocks that some table names."""
        return len(self._owners)

    @property
    def num_tables(self) -> int:
        """Tables that are not empty."""
        return len(self._tables)

    def below(self, limit: int) -> Iterator[Mapping[int, int]]:
        """Returns the owners of each block below `limit` that some table names.

        The limit comes from the engine, so the cost is bounded by the size of the tables.
        """
        if limit > len(self._owners):
            return (_mapping(owners) for block, owners in self._owners.items() if block < limit)
        return (_mapping(self._owners[block]) for block in range(limit) if block in self._owners)

    def among(self, blocks: range) -> list[Mapping[int, int]]:
        """Returns the owners of each of `blocks` that a sequence holds."""
        return [_mapping(owners) for owners in map(self._owners.get, blocks) if owners]

    def of(self, block: int) -> Mapping[int, int]:
        """Returns the sequences that hold `block`, each with the position in its table."""
        owners = self._owners.get(block)
        return _NO_OWNERS if owners is None else _mapping(owners)

    def table(self, seq_id: int) -> Sequence[int]:
        """Returns the table of a sequence as it was set last."""
        return self._tables.get(seq_id, ())

    def set_table(self, seq_id: int, table: list[int]) -> tuple[range, set[int]]:
        """Sets the table of a sequence; an empty table removes it.

        Returns:
            The positions that are new, and the blocks that the sequence got or released.
        """
        before = self._tables.get(seq_id, [])
        if table == before:
            return range(0), set()
        changed: set[int] = set()
        first_new = len(before)
        if table[:first_new] != before:
            self._release(seq_id, before)
            changed.update(before)
            first_new = 0
        for position in range(first_new, len(table)):
            self._add(table[position], seq_id, position)
        changed.update(table[first_new:])
        if first_new:  # a list that only grows stays in the collector's oldest generation
            before += table[first_new:]
        elif table:
            self._tables[seq_id] = table.copy()
        else:
            del self._tables[seq_id]
        return range(first_new, len(table)), changed

    def _add(self, block: int, seq_id: int, position: int) -> None:
        owners = self._owners.get(block)
        if owners is None or (isinstance(owners, _Owner) and owners.seq_id == seq_id):
            self.num_entries += owners is None
            self._owners[block] = _Owner(seq_id, position)
            return
        if isinstance(owners, _Owner):
            self.num_shared += 1
            owners = self._owners[block] = _mapping(owners)
        self.num_entries += seq_id not in owners
        owners[seq_id] = position

    def _release(self, seq_id: int, table: list[int]) -> None:
        for block in table:
            owners = self._owners.get(block)
            if isinstance(owners, _Owner):
                if owners.seq_id == seq_id:
                    del self._owners[block]
                    self.num_entries -= 1
            elif owners is not None and owners.pop(seq_id, None) is not None:
                self.num_entries -= 1
                if len(owners) == 1:
                    self.num_shared -= 1
                    self._owners[block] = _Owner(*owners.popitem())


class _Owner(NamedTuple):
    """The only owner of a block, and the position of the block in its table."""

    seq_id: int
    position: int


def _mapping(owners: _Owner | dict[int, int]) -> dict[int, int]:
    return {owners.seq_id: owners.position} if isinstance(owners, _Owner) else owners


def spec_of_group(info: EngineInfo, group: int) -> Mapping[str, Setting]:
    """Returns the description of a KV-cache group, by its number among the tables.

    The first group is that of `block_table`, and the descriptions are in the engine's order.
    """
    if group >= len(info.kv_cache_specs):
        return {}
    kinds = [spec.get("kind") for spec in info.kv_cache_specs]
    groups = info.kv_cache_groups
    main = kinds.index(groups[0]) if groups and groups[0] in kinds else 0
    order = [main, *(index for index in range(len(kinds)) if index != main)]
    return info.kv_cache_specs[order[group]]


def has_positions(info: EngineInfo | None, group: int = 0) -> bool:
    """Returns whether the place of a block in its table says which tokens it holds.

    Args:
        info: The description of the engine.
        group: The KV-cache group of the table, by its number among the tables.
    """
    return info is None or spec_of_group(info, group).get("has_positions", True) is not False


def _sizes(state: EngineData) -> tuple[int, int, int]:
    info = state.info
    if info is None:
        return 0, 0, 0
    device = max(0, min(info.num_gpu_blocks, MAX_BLOCKS))
    host = max(0, min(info.num_cpu_blocks or 0, MAX_BLOCKS))
    return device, host, max(0, min(info.num_reserved_blocks, _MAX_RESERVED))
