"""The blocks of one memory, the device's or the host's: who may be given which.

Every block is in exactly one of three states:

* *used*: in at least one block table; its reference count says in how many;
* *cached*: in no table, but its content is known by hash and can be shared again;
* *free*: holds nothing worth keeping.

Free blocks are taken before cached ones, and of the cached ones the least recently used goes
first. Nothing here costs more than O(1).
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque


class BlockPool:
    """Counts references to blocks, and finds computed ones by the hash of their content.

    Args:
        num_blocks: Size of the pool; 0 for a memory that is not there.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._free = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_of_hash: dict[bytes, int] = {}
        self._hash_of_block: dict[int, bytes] = {}
        self._forgotten: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that can be taken: free ones and cached ones."""
        return len(self._free) + len(self._cached)

    def ref_count(self, block: int) -> int:
        """In how many tables a block is."""
        return self._ref_counts[block]

    def find(self, block_hash: bytes) -> int | None:
        """The block that holds the content of this hash, if one does."""
        return self._block_of_hash.get(block_hash)

    def take(self) -> int:
        """A block for one table to write to."""
        if self._free:
            block = self._free.popleft()
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_of_hash[self._hash_of_block.pop(block)]
            self._forgotten.append(block)
        self._ref_counts[block] = 1
        return block

    def share(self, block: int) -> int:
        """Count one more table that holds a used or cached block; returns the block."""
        self._cached.pop(block, None)
        self._ref_counts[block] += 1
        return block

    def release(self, block: int) -> None:
        """Count one table less."""
        self._ref_counts[block] -= 1
        if self._ref_counts[block] > 0:
            return
        if block in self._hash_of_block:
            self._cached[block] = None
        else:
            self._free.append(block)

    def register(self, block: int, block_hash: bytes) -> bool:
        """Let a full, computed block be found; it is never written again.

        Returns:
            Whether it can be found now: sequences that were prefilled together may have computed
            the same content twice, and only the first block of it is.
        """
        if block_hash in self._block_of_hash:
            return False
        self._block_of_hash[block_hash] = block
        self._hash_of_block[block] = block_hash
        return True

    def take_forgotten(self) -> list[int]:
        """The blocks whose content can no longer be found, since this was last asked."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def check(self, holders: Counter[int]) -> None:
        """Assert that every block is in one state and counted as often as tables hold it.

        Args:
            holders: For each block that some table holds, in how many it is.
        """
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        blocks = sorted((*holders, *free, *cached))
        assert blocks == list(range(self.num_blocks)), "a block is lost, or in two states"
        for block, count in enumerate(self._ref_counts):
            assert count == holders[block], f"block {block}: {count} != {holders[block]}"
        assert cached <= set(self._hash_of_block), "a cached block has no hash"
        assert not free & set(self._hash_of_block), "a free block has a hash"
        assert {h: b for b, h in self._hash_of_block.items()} == self._block_of_hash
