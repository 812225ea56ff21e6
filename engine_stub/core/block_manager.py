"""Which physical KV blocks belong to which sequence, and which of them are shared.

Sequences share blocks in three ways, each of which counts references in the pool:

* by the prefix cache: a block's hash covers its tokens and, through its predecessor's hash, all
  tokens before them, so equal hashes mean equal KV entries. Only full and computed blocks have
  one; such a block is never written again, which is why sharing it needs no copy;
* by forks: a child begins with its parent's whole table, the last block included, which may have
  room left. Whoever is first to write to such a block gets a copy of it (copy-on-write);
* within a group that is computed anew: sequences that begin alike are given the same full blocks.

Groups that are swapped out keep their tables in a second pool, in the host's memory, shared there
as they were on the device. The manager only counts: who copies what is said by pairs of blocks
that go to the worker.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import takewhile

from engine_stub.core.block_pool import BlockPool
from engine_stub.core.block_stats import BlockStats, CacheChanges
from engine_stub.core.block_table import BlockTable, common_prefix
from engine_stub.core.table_changes import TableChanges
from seqtop.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the blocks of sequences that have none could come from, as of now.

    Attributes:
        hits: Blocks that hold the first tokens of all of them already.
        num_new: Blocks to take besides.
        num_revived: Those of `hits` that are in no table, and so count as available until taken.
    """

    hits: list[int]
    num_new: int
    num_revived: int

    @property
    def num_blocks(self) -> int:
        """Blocks that will no longer be available."""
        return self.num_new + self.num_revived


class BlockManager:
    """Hands out the blocks of a KV pool on the device, and of one in host memory.

    Args:
        num_blocks: Size of the device's pool.
        block_size: Slots (tokens) per block.
        enable_prefix_caching: Whether to keep computed blocks for sequences that start alike.
        num_cpu_blocks: Size of the host's pool; 0 if nothing is ever swapped.
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
        self._known: list[tuple[int, int, int]] = []
        self._changes = TableChanges()

    @property
    def num_available(self) -> int:
        """Blocks of the device that can be taken: free ones and cached ones."""
        return self.device.num_available

    @property
    def stats(self) -> BlockStats:
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
        """The sequence's block table as it is now; empty while it has no blocks on the device.

        The list stays as it is; when the table grows, there is another one.
        """
        table = self._tables.get(seq.seq_id)
        return table.blocks if table else []

    def get_computed_block_nums(self, seqs: list[Sequence]) -> list[int] | None:
        """Leading blocks of all sequences known to the prefix cache; None if that is off."""
        if not self.enable_prefix_caching:
            return None
        registered = [self._tables[seq.seq_id].registered for seq in seqs]
        return registered[0] if len(registered) == 1 else common_prefix(registered)

    # Sequences that have no blocks.

    def place(self, seqs: list[Sequence], *, use_cache: bool = True) -> Placement:
        """Look for the longest computed prefix, and count the blocks needed besides.

        At least one token is left to compute, for there is no next token without its logits.

        Args:
            seqs: The unfinished sequences of one group, all of one length.
            use_cache: False to compute every token, whatever the prefix cache holds.
        """
        hits: list[int] = []
        if self.enable_prefix_caching and use_cache:
            hits = common_prefix([self._find_prefix(seq) for seq in seqs])
        if len(seqs) == 1:
            num_new = seqs[0].n_blocks - len(hits)
        else:
            keys = {key for seq in seqs for key in self._keys(seq)[len(hits) :]}
            num_new = len(keys)
        return Placement(
            hits=hits,
            num_new=num_new,
            num_revived=sum(self.device.ref_count(block) == 0 for block in hits),
        )

    def num_missing(self, num_blocks: int, reserve: int = 0) -> int:
        """Blocks that lack for taking `num_blocks` and leaving `reserve`; 0 if none do."""
        return max(num_blocks + reserve - self.num_available, 0)

    def allocate(self, seqs: list[Sequence], placement: Placement) -> None:
        """Give the sequences of a group blocks for all their tokens.

        `placement` must be fresh: nothing taken or returned since it was made.
        """
        taken: dict[object, int] = {}
        for seq in seqs:
            table = self._tables.setdefault(seq.seq_id, BlockTable())
            blocks = [self.device.share(block) for block in placement.hits]
            num_new = seq.n_blocks - len(placement.hits)
            if len(seqs) == 1:
                blocks += [self.device.take() for _ in range(num_new)]
            else:
                for key in self._keys(seq)[len(placement.hits) :]:
                    if key in taken:
                        self.device.share(taken[key])
                    else:
                        taken[key] = self.device.take()
                    blocks.append(taken[key])
            table.blocks, table.registered = blocks, placement.hits
            if self.enable_prefix_caching:
                self._prefix_queries += seq.get_len()
                self._prefix_hits += len(placement.hits) * self.block_size

    # Sequences that run.

    def have_room(self, seqs: list[Sequence]) -> bool:
        """Whether there is nothing to append for the tokens that the sequences have."""
        return all(seq.get_len() <= self._tables[seq.seq_id].room for seq in seqs)

    def num_to_append(self, seqs: list[Sequence], num_lookahead_slots: int = 0) -> int:
        """Blocks that `append_slots` would take."""
        tables = {seq.seq_id: self._tables[seq.seq_id].blocks for seq in seqs}
        return self._num_to_append(seqs, tables, self.device, num_lookahead_slots)

    def append_slots(
        self, seqs: list[Sequence], num_lookahead_slots: int = 0
    ) -> list[tuple[int, int]]:
        """Make room for tokens that have come since the last step, in blocks that nobody shares.

        Args:
            num_lookahead_slots: Of each sequence, for tokens that the step itself may bring; what
                it leaves empty stays in the table for the tokens that come next.

        Returns:
            ``(source, destination)`` of each block to copy before anything is written.
        """
        copies: list[tuple[int, int]] = []
        for seq in seqs:
            table = self._tables[seq.seq_id]
            blocks, num_copies = table.blocks.copy(), len(copies)
            for index in self._written(seq, blocks):
                shared = blocks[index]
                if self.device.ref_count(shared) > 1:
                    blocks[index] = self.device.take()
                    self.device.release(shared)
                    copies.append((shared, blocks[index]))
            while len(blocks) < self._num_blocks(seq, num_lookahead_slots):
                blocks.append(self.device.take())
            if len(copies) > num_copies:
                self._changes.replace(seq.seq_id, blocks)
            else:
                self._changes.append(seq.seq_id, blocks[len(table.blocks) :])
            table.blocks, table.room = blocks, len(blocks) * self.block_size
        return copies

    def mark_computed(self, seq: Sequence) -> None:
        """Let others share the blocks that the last step filled."""
        if not self.enable_prefix_caching:
            return
        table = self._tables[seq.seq_id]
        num_full = seq.get_num_computed_tokens() // self.block_size
        if num_full <= len(table.registered):
            return
        table.hash_blocks(seq, num_full)
        for index in range(len(table.registered), num_full):
            if self.device.register(table.blocks[index], table.hashes[index]):
                self._known.append((table.blocks[index], seq.seq_id, index))
        table.registered = table.blocks[:num_full]

    @property
    def table_changes(self) -> TableChanges:
        """What has been done since `begin_step` to tables that there were, and by forks."""
        return self._changes

    def begin_step(self) -> None:
        """Take note of changes to tables from here on."""
        self._changes = TableChanges()

    def take_cache_changes(self) -> CacheChanges:
        """What has changed in the prefix cache since this was last asked; ask after each step.

        Blocks are forgotten while a step is scheduled, and known when it has been computed.
        """
        known, self._known = self._known, []
        return CacheChanges(self.device.take_forgotten(), known)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give a copy of a sequence the very blocks of the original."""
        table = self._tables[parent.seq_id]
        for block in table.blocks:
            self.device.share(block)
        self._tables[child.seq_id] = BlockTable(table.blocks, table.registered, table.hashes.copy())
        self._changes.replace(child.seq_id, table.blocks)
        table.room = 0  # it shares its last block now

    def free(self, seq: Sequence) -> None:
        """Take a sequence's blocks back, wherever they are; without any, nothing happens."""
        if table := self._tables.pop(seq.seq_id, None):
            self._release(table.blocks)
        for block in self._host_tables.pop(seq.seq_id, ()):
            self.host.release(block)

    # Swapping.

    def can_swap_out(self, seqs: list[Sequence]) -> bool:
        """Whether the host has room for what is computed of the sequences."""
        return len({block for seq in seqs for block in self._held(seq)}) <= self.host.num_free

    def swap_out(self, seqs: list[Sequence]) -> list[tuple[int, int]]:
        """Move a group's tables to the host.

        Returns:
            ``(device block, host block)`` pairs to copy before the device's are written again.
        """
        host_block: dict[int, int] = {}
        for seq in seqs:
            for block in self._held(seq):
                if block in host_block:
                    self.host.share(host_block[block])
                else:
                    host_block[block] = self.host.take()
            self._host_tables[seq.seq_id] = [host_block[block] for block in self._held(seq)]
        for seq in seqs:
            table = self._tables[seq.seq_id]
            self._release(table.blocks)
            table.blocks, table.registered, table.room = [], [], 0
        return list(host_block.items())

    def num_to_swap_in(self, seqs: list[Sequence]) -> int:
        """Blocks that `swap_in` and `append_slots` after it would take."""
        held = {block for seq in seqs for block in self._host_tables[seq.seq_id]}
        return len(held) + self._num_to_append(seqs, self._host_tables, self.host)

    def swap_in(self, seqs: list[Sequence]) -> list[tuple[int, int]]:
        """Move a group's tables back to the device.

        Returns:
            ``(host block, device block)`` pairs to copy before the device's are read.
        """
        device_block: dict[int, int] = {}
        for seq in seqs:
            blocks: list[int] = []
            for block in self._host_tables.pop(seq.seq_id):
                if block in device_block:
                    self.device.share(device_block[block])
                else:
                    device_block[block] = self.device.take()
                blocks.append(device_block[block])
                self.host.release(block)
            self._tables[seq.seq_id].blocks = blocks
            self._changes.replace(seq.seq_id, blocks)
        return list(device_block.items())

    def check(self) -> None:
        """Assert that the tables and the pools agree, and that no sequence is on both sides."""
        self.device.check(Counter(b for table in self._tables.values() for b in table.blocks))
        self.host.check(Counter(b for table in self._host_tables.values() for b in table))
        for seq_id, table in self._tables.items():
            assert len(set(table.blocks)) == len(table.blocks), f"{seq_id} holds a block twice"
            num_registered = len(table.registered)
            assert table.blocks[:num_registered] == table.registered, f"{seq_id} registered others"
            assert table.room <= len(table.blocks) * self.block_size, f"{seq_id} has no such room"
            assert not (table.blocks and seq_id in self._host_tables), f"{seq_id} is on both sides"

    def _find_prefix(self, seq: Sequence) -> list[int]:
        """Blocks known to hold the sequence's first tokens."""
        table = self._tables.setdefault(seq.seq_id, BlockTable())
        table.hash_blocks(seq, (seq.get_len() - 1) // self.block_size)
        found = takewhile(lambda block: block is not None, map(self.device.find, table.hashes))
        return [block for block in found if block is not None]

    def _keys(self, seq: Sequence) -> list[object]:
        """For each block of a sequence something that is equal in two that may be one."""
        table = self._tables.setdefault(seq.seq_id, BlockTable())
        num_full = seq.get_len() // self.block_size
        table.hash_blocks(seq, num_full)
        # The last block is written on, so it is nobody else's.
        own = [seq.seq_id] * (seq.n_blocks - num_full)
        return [*table.hashes[:num_full], *own]

    def _num_blocks(self, seq: Sequence, num_lookahead_slots: int) -> int:
        """Blocks for a sequence's tokens and as many more."""
        return -(-(seq.get_len() + num_lookahead_slots) // self.block_size)

    def _num_to_append(
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
            for index in self._written(seq, blocks):
                # The last of those who share a block keeps it.
                if pool.ref_count(blocks[index]) - given_up[blocks[index]] > 1:
                    given_up[blocks[index]] += 1
                    num_blocks += 1
        return num_blocks

    def _written(self, seq: Sequence, blocks: list[int]) -> range:
        """Indices of the blocks that the next step may write to."""
        return range(seq.get_num_computed_tokens() // self.block_size, len(blocks))

    def _held(self, seq: Sequence) -> list[int]:
        """The blocks that hold computed tokens."""
        num_blocks = -(-seq.get_num_computed_tokens() // self.block_size)
        return self._tables[seq.seq_id].blocks[:num_blocks]

    def _release(self, blocks: list[int]) -> None:
        # Last block first: a prefix is worth more than what follows it.
        for block in reversed(blocks):
            self.device.release(block)
