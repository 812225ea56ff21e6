"""The blocks of one memory, the device's or the host's.

Every block is in exactly one of three states:

* *used*: in at least one block table; its reference count is the number of tables;
* *cached*: in no table, but its content can be found by its hash and shared again;
* *free*: its content is not needed.

Free blocks are allocated before cached ones, and the least recently used cached block before the
others. All operations are O(1) for each block.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable

from engine_stub.step_record import BlockRemoved, BlockStored, CacheEvent


class BlockPool:
    """Counts references to blocks, and finds computed ones by the hash of their content.

    Args:
        num_blocks: Size of the pool; 0 for none.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._free = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_of_hash: dict[bytes, int] = {}
        self._stored: dict[int, BlockStored] = {}  # by block, those with a hash
        self.events: list[CacheEvent] = []

    @property
    def num_free(self) -> int:
        """The number of free blocks."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """The number of cached blocks."""
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that can be taken: free ones and cached ones."""
        return len(self._free) + len(self._cached)

    def ref_count(self, block: int) -> int:
        """Returns the number of tables that contain a block."""
        return self._ref_counts[block]

    def num_unused(self, blocks: list[int]) -> int:
        """Returns how many of some blocks are in no table."""
        counts = self._ref_counts
        return sum([not counts[block] for block in blocks])

    def cached_prefix(self, hashes: list[bytes]) -> list[int]:
        """Returns the blocks with the contents of the first hashes, up to one that no block has."""
        get_block = self._block_of_hash.get
        blocks: list[int] = []
        for block_hash in hashes:
            block = get_block(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def get_new_blocks(self, num_blocks: int, seq_id: int) -> list[int]:
        """Takes free blocks, and then evicts cached ones, for the table of one sequence."""
        take = self._free.popleft
        blocks = [take() for _ in range(min(num_blocks, len(self._free)))]
        for _ in range(num_blocks - len(blocks)):
            block, _ = self._cached.popitem(last=False)
            block_hash = self._stored.pop(block).block_hash
            del self._block_of_hash[block_hash]
            self.events.append(BlockRemoved(block, block_hash, seq_id))
            blocks.append(block)
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Adds a reference to each of some used or cached blocks."""
        for block in blocks:
            self._cached.pop(block, None)
            self._ref_counts[block] += 1

    def free_blocks(self, blocks: Iterable[int]) -> None:
        """Removes a reference to each block. The first is evicted first."""
        for block in blocks:
            self._ref_counts[block] -= 1
            if self._ref_counts[block] > 0:
                continue
            if block in self._stored:
                self._cached[block] = None
            else:
                self._free.append(block)

    def cache_full_blocks(
        self, seq_id: int, blocks: list[int], hashes: list[bytes], num_cached: int, num_full: int
    ) -> None:
        """Makes full, computed blocks findable by their hashes; they must not be written again.

        Sequences that were prefilled together may have computed the same content twice; only the
        first block with it is cached.

        Args:
            seq_id: The sequence that computed the blocks.
            blocks: Its table.
            hashes: The hashes of its full blocks.
            num_cached: Leading blocks that were cached before.
            num_full: Leading blocks that are full and computed.
        """
        for position in range(num_cached, num_full):
            block, block_hash = blocks[position], hashes[position]
            if block_hash not in self._block_of_hash:
                self._block_of_hash[block_hash] = block
                self._stored[block] = stored = BlockStored(block, block_hash, seq_id, position)
                self.events.append(stored)

    @property
    def stored_blocks(self) -> list[BlockStored]:
        """The blocks in the prefix cache, used or not, as of when they were added."""
        return list(self._stored.values())

    def take_events(self) -> list[CacheEvent]:
        """Returns the events since the last call, in order."""
        events, self.events = self.events, []
        return events

    def check(self, holders: Counter[int]) -> None:
        """Asserts that every block is in one state, with the right reference count.

        Args:
            holders: For each block in a table, the number of tables that contain it.
        """
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        blocks = sorted((*holders, *free, *cached))
        assert blocks == list(range(self.num_blocks)), "a block is lost, or in two states"
        for block, count in enumerate(self._ref_counts):
            assert count == holders[block], f"block {block}: {count} != {holders[block]}"
        assert cached <= set(self._stored), "a cached block has no hash"
        assert not free & set(self._stored), "a free block has a hash"
        assert {s.block_hash: b for b, s in self._stored.items()} == self._block_of_hash
