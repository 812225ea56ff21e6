"""Who holds each block of the KV pools, kept up to date as it changes.

The block tables of a state turned round: an update costs what the tables that changed cost,
never what the pool does. Blocks are numbered through both pools, those of the device first and
those in host memory after them.
"""

from collections.abc import Iterable, Mapping

from seqtop.state import EngineState
from seqtop.state.block_owners import BlockOwners
from seqtop.state.model import CachedBlock, SequenceState

MOST_BLOCKS = 2**31
"""No pool is taken to be larger than this, whatever an engine says."""


class BlockIndex:
    """An index over the block tables of an `EngineState`."""

    def __init__(self) -> None:
        self.num_device = 0
        """Blocks of the device's pool."""
        self.num_host = 0
        """Blocks in host memory to swap to."""
        self.num_reserved = 0
        """The device's first blocks, which no sequence is given."""
        self.cached: Mapping[int, CachedBlock] = {}
        """The device's blocks that the prefix cache knows, as far as the engine tells."""
        self._device, self._groups, self._host = BlockOwners(), BlockOwners(), BlockOwners()

    def __len__(self) -> int:
        return self.num_device + self.num_host

    @property
    def num_shared(self) -> int:
        """Blocks of the device that several sequences hold."""
        reserved = sum(len(holders) > 1 for holders in self._device.below(self.num_reserved))
        return self._device.num_shared + self._groups.num_shared - reserved

    @property
    def num_swapped(self) -> int:
        """Blocks in host memory that somebody holds."""
        return self._host.num_blocks

    def owners(self, block: int) -> Mapping[int, int]:
        """The sequences that hold a block, each with the place it has in `blocks`."""
        if block < self.num_device:
            return self._device.of(block) or self._groups.of(block)
        return self._host.of(block - self.num_device)

    def blocks(self, seq_id: int) -> list[int]:
        """The blocks that a sequence holds, in logical order, one KV-cache group after another."""
        swapped = self._host.table(seq_id)
        return [
            *self._device.table(seq_id),
            *self._groups.table(seq_id),
            *(self.num_device + block for block in swapped),
        ]

    def first_block(self, seq_id: int) -> int | None:
        """The first of a sequence's blocks, if it holds any."""
        for owners, offset in ((self._device, 0), (self._host, self.num_device)):
            if table := owners.table(seq_id):
                return offset + table[0]
        return None

    def fits(self, state: EngineState) -> bool:
        """Whether this is an index of pools as large as those of `state`."""
        return (self.num_device, self.num_host, self.num_reserved) == _sizes(state)

    def rebuild(self, state: EngineState) -> None:
        """Begin anew with `state`."""
        self.num_device, self.num_host, self.num_reserved = _sizes(state)
        self._device, self._groups, self._host = BlockOwners(), BlockOwners(), BlockOwners()
        self.update(state, state.sequences)

    def update(self, state: EngineState, touched: Iterable[int]) -> set[int]:
        """Take over the tables of the sequences `touched`; return the blocks that changed hands."""
        self.cached = state.cached_blocks or {}
        changed: set[int] = set()
        for seq_id in touched:
            sequence = state.sequences.get(seq_id)
            changed |= _take(self._device, seq_id, sequence.block_table if sequence else [])
            changed |= _take(self._groups, seq_id, group_blocks(sequence) if sequence else [])
            on_host = _take(self._host, seq_id, sequence.host_table if sequence else [])
            changed.update(self.num_device + block for block in on_host)
        return changed


def group_blocks(sequence: SequenceState) -> list[int]:
    """The blocks of a sequence's KV-cache groups after the first, one group after another."""
    return [block for table in sequence.group_block_tables for block in table]


def _take(owners: BlockOwners, seq_id: int, table: list[int]) -> set[int]:
    """Take over one table; return the blocks that came or went."""
    old = owners.table(seq_id)
    if not old and not table:
        return set()
    added = owners.update(seq_id, table)
    changed = {table[position] for position in added}
    if len(added) == len(table):  # it did not just grow
        changed.update(old)
    return changed


def _sizes(state: EngineState) -> tuple[int, int, int]:
    info = state.info
    if info is None:
        return 0, 0, 0
    device = max(0, min(info.num_gpu_blocks, MOST_BLOCKS))
    host = max(0, min(info.num_cpu_blocks or 0, MOST_BLOCKS))
    return device, host, max(0, min(info.num_reserved_blocks, 16))
