"""Assigns physical KV blocks to sequences, and shares them where contents are equal.

Sequences share blocks in three ways; the pool counts the references:

* by the prefix cache: a block's hash covers its tokens and, through its predecessor's hash, all
  tokens before them, so that equal hashes mean equal KV entries. Only full and computed blocks are
  hashed; such a block is never written again, so that sharing it needs no copy;
* by forks: a child begins with its parent's whole table, including the last block, which may be
  partly empty. The first sequence to write to such a block gets a copy of it (copy-on-write);
* within a group that is recomputed: sequences with equal beginnings get the same full blocks.

Groups that are swapped out have their tables in a second pool, in host memory, shared there as on
the device. The manager only keeps account of blocks; the worker copies the pairs that it returns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from engine_stub.core.block_pool import BlockPool
from engine_stub.core.block_table import BlockTable, common_prefix
from engine_stub.step_record import (
    BlockStats,
    BlockStored,
    CacheEvent,
    PrefixQueried,
    TableChanges,
)
from seqtop.sequence import Sequence


@dataclass(frozen=True, slots=True)
class ComputedBlocks:
    """The cached prefix of sequences that have no blocks, and the blocks that the rest needs.

    Valid until blocks change.

    Attributes:
        blocks: Cached blocks that hold the first tokens of all the sequences.
        num_new_blocks: Further blocks to allocate.
        num_unused_blocks: Those of `blocks` that are in no table, and so count as available.
        use_cache: Whether the prefix cache was looked up.
    """

    blocks: list[int]
    num_new_blocks: int
    num_unused_blocks: int
    use_cache: bool

    @property
    def num_required_blocks(self) -> int:
        """Blocks that the allocation makes unavailable."""
        return self.num_new_blocks + self.num_unused_blocks


class BlockManager:
    """Allocates the blocks of a KV pool on the device, and of one in host memory.

    Args:
        num_blocks: Size of the device's pool.
        block_size: Slots (tokens) per block.
        enable_prefix_caching: Whether sequences with equal beginnings share computed blocks.
        num_cpu_blocks: Size of the host's pool; 0 without swapping.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool,
        num_cpu_blocks: int = 0,
    ) -> None:
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.device = BlockPool(num_blocks)
        self.host = BlockPool(num_cpu_blocks)
        self._tables: dict[int, BlockTable] = {}
        self._host_tables: dict[int, list[int]] = {}
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._changes = TableChanges()

    @property
    def num_available(self) -> int:
        """Blocks of the device that can be allocated: free ones and cached ones."""
        return self.device.num_available

    @property
    def stats(self) -> BlockStats:
        """The numbers of blocks by state, and the totals of the prefix cache."""
        return BlockStats(
            total=self.device.num_blocks,
            used=self.device.num_blocks - self.device.num_available,
            cached=self.device.num_cached,
            free=self.device.num_free,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            total_cpu=self.host.num_blocks,
            free_cpu=self.host.num_free,
        )

    def get_block_table(self, seq: Sequence) -> list[int]:
        """Returns the sequence's block table; empty while it has no blocks on the device.

        The list never changes; a table that grows gets a new one.
        """
        table = self._tables.get(seq.seq_id)
        return table.blocks if table else []

    def table_of(self, seq_id: int) -> BlockTable:
        """Returns the table of a sequence that has blocks; only to be read."""
        return self._tables[seq_id]

    def get_computed_block_nums(self, seqs: list[Sequence]) -> list[int] | None:
        """Returns the leading blocks of all sequences in the prefix cache; None if that is off."""
        if not self.enable_prefix_caching:
            return None
        return common_prefix([self._tables[seq.seq_id].cached_blocks for seq in seqs])

    # --- Sequences without blocks

    def get_computed_blocks(
        self, seqs: list[Sequence], *, use_cache: bool = True
    ) -> ComputedBlocks:
        """Finds the longest cached prefix, and counts the further blocks needed.

        At least one token is left to compute, because sampling needs its logits.

        Args:
            seqs: The unfinished sequences of one group, all of one length.
            use_cache: Whether to use the prefix cache.
        """
        blocks: list[int] = []
        if self.enable_prefix_caching and use_cache:
            blocks = common_prefix([self._cached_prefix(seq) for seq in seqs])
        if len(seqs) == 1:
            num_new_blocks = seqs[0].n_blocks - len(blocks)
        else:
            num_new_blocks = len({key for seq in seqs for key in self._keys(seq)[len(blocks) :]})
        return ComputedBlocks(
            blocks=blocks,
            num_new_blocks=num_new_blocks,
            num_unused_blocks=self.device.num_unused(blocks),
            use_cache=use_cache,
        )

    def num_missing_blocks(self, num_blocks: int, reserve: int = 0) -> int:
        """Returns the blocks missing to take `num_blocks` and leave `reserve`; 0 if none are."""
        return max(num_blocks + reserve - self.num_available, 0)

    def allocate_slots(self, seqs: list[Sequence], computed: ComputedBlocks) -> None:
        """Allocates blocks for all tokens of the sequences of a group.

        No block may have been taken or freed since `get_computed_blocks` returned `computed`.
        """
        if self.enable_prefix_caching:
            self.device.events.append(self._prefix_queried(seqs, computed))
        new_blocks: dict[object, int] = {}
        for seq in seqs:
            table = self._tables.setdefault(seq.seq_id, BlockTable())
            self.device.touch(computed.blocks)
            blocks = computed.blocks.copy()
            if len(seqs) == 1:
                blocks += self.device.get_new_blocks(seq.n_blocks - len(blocks), seq.seq_id)
            else:
                for key in self._keys(seq)[len(computed.blocks) :]:
                    if key in new_blocks:
                        self.device.touch([new_blocks[key]])
                    else:
                        (new_blocks[key],) = self.device.get_new_blocks(1, seq.seq_id)
                    blocks.append(new_blocks[key])
            table.blocks, table.cached_blocks = blocks, computed.blocks
            if self.enable_prefix_caching:
                self._prefix_queries += seq.get_len()
                self._prefix_hits += len(computed.blocks) * self.block_size

    # --- Running sequences

    def have_slots(self, seqs: list[Sequence]) -> bool:
        """Tells whether `append_slots` would change nothing."""
        if len(seqs) == 1:  # without a generator, in a third of the time
            return seqs[0].data.get_len() <= self._tables[seqs[0].seq_id].capacity
        return all(seq.get_len() <= self._tables[seq.seq_id].capacity for seq in seqs)

    def num_blocks_to_append(self, seqs: list[Sequence], num_lookahead_slots: int = 0) -> int:
        """Returns the number of blocks that `append_slots` would take."""
        tables = {seq.seq_id: self._tables[seq.seq_id].blocks for seq in seqs}
        return self._count_blocks_to_append(seqs, tables, self.device, num_lookahead_slots)

    def append_slots(
        self, seqs: list[Sequence], num_lookahead_slots: int = 0
    ) -> list[tuple[int, int]]:
        """Allocates slots for the tokens since the last step, in blocks that are not shared.

        Args:
            num_lookahead_slots: Slots of each sequence for further tokens of the step. Those that
                it does not use stay in the table for later tokens.

        Returns:
            ``(source, destination)`` of each block to copy before the step writes.
        """
        copies: list[tuple[int, int]] = []
        for seq in seqs:
            table = self._tables[seq.seq_id]
            blocks, num_copies = table.blocks.copy(), len(copies)
            for index in self._writable_indices(seq, blocks):
                shared = blocks[index]
                if self.device.ref_count(shared) > 1:
                    (blocks[index],) = self.device.get_new_blocks(1, seq.seq_id)
                    self.device.free_blocks([shared])
                    copies.append((shared, blocks[index]))
            num_new = self._num_blocks(seq, num_lookahead_slots) - len(blocks)
            blocks += self.device.get_new_blocks(num_new, seq.seq_id)
            if len(copies) > num_copies:
                self._changes.replace(seq.seq_id, blocks)
            else:
                self._changes.append(seq.seq_id, blocks[len(table.blocks) :])
            table.blocks, table.capacity = blocks, len(blocks) * self.block_size
        return copies

    def cache_blocks(self, seq: Sequence) -> None:
        """Adds the blocks that the last step filled to the prefix cache."""
        if not self.enable_prefix_caching:
            return
        table = self._tables[seq.seq_id]
        num_cached = len(table.cached_blocks)
        num_full = seq.data.get_num_computed_tokens() // self.block_size
        if num_full > num_cached:
            table.hash_blocks(seq, num_full)
            self.device.cache_full_blocks(
                seq.seq_id, table.blocks, table.hashes, num_cached, num_full
            )
            table.cached_blocks = table.blocks[:num_full]

    @property
    def table_changes(self) -> TableChanges:
        """Changes since `begin_step` of existing tables, and the tables of forks."""
        return self._changes

    def begin_step(self) -> None:
        """Starts a new record of table changes."""
        self._changes = TableChanges()

    def take_events(self) -> list[CacheEvent]:
        """Returns the events of the prefix cache since the last call, in order."""
        return self.device.take_events()

    def stored_blocks(self) -> list[BlockStored]:
        """Returns the blocks in the prefix cache of the device."""
        return self.device.stored_blocks

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Makes a forked sequence share all blocks of its parent."""
        table = self._tables[parent.seq_id]
        self.device.touch(table.blocks)
        self._tables[child.seq_id] = BlockTable(
            table.blocks, table.cached_blocks, table.hashes.copy()
        )
        self._changes.replace(child.seq_id, table.blocks)
        table.capacity = 0  # the last block is shared now

    def free(self, seq: Sequence) -> None:
        """Releases the blocks of a sequence in both pools; does nothing if it has none."""
        if table := self._tables.pop(seq.seq_id, None):
            self._free_table(table)
        self.host.free_blocks(self._host_tables.pop(seq.seq_id, ()))

    # --- Swapping

    def can_swap_out(self, seqs: list[Sequence]) -> bool:
        """Tells whether the host has room for the computed blocks of the sequences."""
        return (
            len({block for seq in seqs for block in self._computed_blocks(seq)})
            <= self.host.num_free
        )

    def swap_out(self, seqs: list[Sequence]) -> list[tuple[int, int]]:
        """Moves a group's tables to the host.

        Returns:
            ``(device block, host block)`` pairs to copy before the step writes.
        """
        host_block: dict[int, int] = {}
        for seq in seqs:
            for block in self._computed_blocks(seq):
                if block in host_block:
                    self.host.touch([host_block[block]])
                else:
                    (host_block[block],) = self.host.get_new_blocks(1, seq.seq_id)
            self._host_tables[seq.seq_id] = [
                host_block[block] for block in self._computed_blocks(seq)
            ]
        for seq in seqs:
            table = self._tables[seq.seq_id]
            self._free_table(table)
            table.blocks, table.cached_blocks, table.capacity = [], [], 0
        return list(host_block.items())

    def num_to_swap_in(self, seqs: list[Sequence]) -> int:
        """Returns the number of blocks that `swap_in` and then `append_slots` would take."""
        blocks = {block for seq in seqs for block in self._host_tables[seq.seq_id]}
        return len(blocks) + self._count_blocks_to_append(seqs, self._host_tables, self.host)

    def swap_in(self, seqs: list[Sequence]) -> list[tuple[int, int]]:
        """Moves a group's tables back to the device.

        Returns:
            ``(host block, device block)`` pairs to copy before the step reads.
        """
        device_block: dict[int, int] = {}
        for seq in seqs:
            blocks: list[int] = []
            for block in self._host_tables.pop(seq.seq_id):
                if block in device_block:
                    self.device.touch([device_block[block]])
                else:
                    (device_block[block],) = self.device.get_new_blocks(1, seq.seq_id)
                blocks.append(device_block[block])
                self.host.free_blocks([block])
            self._tables[seq.seq_id].blocks = blocks
            self._changes.replace(seq.seq_id, blocks)
        return list(device_block.items())

    def check(self) -> None:
        """Asserts that tables and pools agree, and that no sequence has blocks in both pools."""
        self.device.check(Counter(b for table in self._tables.values() for b in table.blocks))
        self.host.check(Counter(b for table in self._host_tables.values() for b in table))
        for seq_id, table in self._tables.items():
            assert len(set(table.blocks)) == len(table.blocks), f"{seq_id} holds a block twice"
            num_cached = len(table.cached_blocks)
            assert table.blocks[:num_cached] == table.cached_blocks, f"{seq_id} cached others"
            assert table.capacity <= len(table.blocks) * self.block_size, f"{seq_id}: no such slots"
            assert not (table.blocks and seq_id in self._host_tables), f"{seq_id} is on both sides"

    def _cached_prefix(self, seq: Sequence) -> list[int]:
        """Returns the cached blocks that hold the sequence's first tokens."""
        table = self._tables.setdefault(seq.seq_id, BlockTable())
        num_blocks = (seq.get_len() - 1) // self.block_size
        table.hash_blocks(seq, num_blocks)
        return self.device.cached_prefix(table.hashes[:num_blocks])

    def _prefix_queried(self, seqs: list[Sequence], computed: ComputedBlocks) -> PrefixQueried:
        num_tokens, num_hits = seqs[0].get_len(), len(computed.blocks)
        num_blocks = (num_tokens - 1) // self.block_size
        missed: list[list[bytes]] = []
        for seq in seqs:
            table = self._tables.setdefault(seq.seq_id, BlockTable())
            table.hash_blocks(seq, num_blocks)
            missed.append(table.hashes[num_hits:num_blocks])
        seq_ids = [seq.seq_id for seq in seqs]
        return PrefixQueried(seq_ids, num_tokens, num_hits, missed, computed.use_cache)

    def _keys(self, seq: Sequence) -> list[object]:
        """Returns a key for each block of a sequence; blocks with equal keys may be shared."""
        table = self._tables.setdefault(seq.seq_id, BlockTable())
        num_full = seq.get_len() // self.block_size
        table.hash_blocks(seq, num_full)
        # The last block is written to, so that its key is unique.
        own = [seq.seq_id] * (seq.n_blocks - num_full)
        return [*table.hashes[:num_full], *own]

    def _num_blocks(self, seq: Sequence, num_lookahead_slots: int) -> int:
        """Returns the number of blocks for a sequence's tokens and `num_lookahead_slots` more."""
        return -(-(seq.get_len() + num_lookahead_slots) // self.block_size)

    def _count_blocks_to_append(
        self,
        seqs: list[Sequence],
        tables: dict[int, list[int]],
        pool: BlockPool,
        num_lookahead_slots: int = 0,
    ) -> int:
        num_blocks = 0
        given_up: Counter[int] = Counter()
        for seq in seqs:
            blocks = tables[seq.seq_id]
            num_blocks += max(self._num_blocks(seq, num_lookahead_slots) - len(blocks), 0)
            for index in self._writable_indices(seq, blocks):
                # The last sequence that shares a block keeps it.
                if pool.ref_count(blocks[index]) - given_up[blocks[index]] > 1:
                    given_up[blocks[index]] += 1
                    num_blocks += 1
        return num_blocks

    def _writable_indices(self, seq: Sequence, blocks: list[int]) -> range:
        """Returns the indices of the blocks that the next step may write to."""
        return range(seq.get_num_computed_tokens() // self.block_size, len(blocks))

    def _computed_blocks(self, seq: Sequence) -> list[int]:
        """Returns the blocks that hold computed tokens."""
        num_blocks = -(-seq.get_num_computed_tokens() // self.block_size)
        return self._tables[seq.seq_id].blocks[:num_blocks]

    def _free_table(self, table: BlockTable) -> None:
        # Last block first, so that the cache evicts it before the prefix that it depends on.
        self.device.free_blocks(reversed(table.blocks))
