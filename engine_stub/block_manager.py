"""Which physical KV blocks belong to which sequence, and which can be used again.

Every block is in exactly one of three states:

* *used*: in at least one sequence's block table; its reference count says in how many;
* *cached*: in no table, but its content is known by hash and can be shared again;
* *free*: holds nothing worth keeping.

A block's hash covers its tokens and, through its predecessor's hash, all tokens before them, so
equal hashes mean equal KV entries. Only full and computed blocks have one; such a block is never
written again, which is why sharing it needs no copy. Free blocks are taken before cached ones,
and of the cached ones the least recently used goes first. Nothing here costs more than O(1) per
block.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from hashlib import blake2b

from seqtop.sequence import Sequence


@dataclass(frozen=True, slots=True)
class BlockStats:
    """Blocks by state, and what the prefix cache has done since the engine started.

    Attributes:
        total: Blocks in the pool: `used` + `cached` + `free`.
        prefix_queries: Tokens of all sequences placed, each time they were.
        prefix_hits: Those of them found in the cache.
    """

    total: int
    used: int
    cached: int
    free: int
    prefix_queries: int
    prefix_hits: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the blocks of a sequence that has none could come from, as of now.

    Attributes:
        hits: Blocks that hold its first tokens already.
        num_new: Blocks to take besides.
        num_revived: Those of `hits` that are in no table, and so count as available until taken.
    """

    hits: list[int]
    num_new: int
    num_revived: int


@dataclass(slots=True)
class _BlockTable:
    """A sequence's blocks, in the order of its tokens.

    Attributes:
        blocks: Physical block numbers.
        hashes: Hash of each full block, computed when first asked for.
        num_registered: How many leading blocks the prefix cache has been told of.
    """

    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    num_registered: int = 0


class BlockManager:
    """Hands out the blocks of one KV pool.

    Args:
        num_blocks: Size of the pool.
        block_size: Slots (tokens) per block.
        enable_prefix_caching: Whether to keep computed blocks for sequences that start alike.
    """

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._ref_counts = [0] * num_blocks
        self._free = deque(range(num_blocks))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._block_of_hash: dict[bytes, int] = {}
        self._hash_of_block: dict[int, bytes] = {}
        self._tables: dict[int, _BlockTable] = {}
        self._prefix_queries = 0
        self._prefix_hits = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be taken: free ones and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def stats(self) -> BlockStats:
        return BlockStats(
            total=self.num_blocks,
            used=self.num_blocks - self.num_available,
            cached=len(self._cached),
            free=len(self._free),
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
        )

    def get_block_table(self, seq: Sequence) -> list[int]:
        """A copy of the sequence's block table; empty while it has none."""
        table = self._tables.get(seq.seq_id)
        return table.blocks.copy() if table else []

    def get_computed_block_nums(self, seq: Sequence) -> list[int] | None:
        """The sequence's blocks known to the prefix cache; None if that is switched off."""
        if not self.enable_prefix_caching:
            return None
        table = self._tables[seq.seq_id]
        return table.blocks[: table.num_registered]

    def place(self, seq: Sequence) -> Placement:
        """Look for the longest computed prefix, and count the blocks needed besides.

        At least one token is left to compute, for there is no next token without its logits.
        """
        hits: list[int] = []
        if self.enable_prefix_caching:
            table = self._tables.setdefault(seq.seq_id, _BlockTable())
            self._hash_blocks(table, seq, (seq.get_len() - 1) // self.block_size)
            for block_hash in table.hashes:
                if (block := self._block_of_hash.get(block_hash)) is None:
                    break
                hits.append(block)
        return Placement(
            hits=hits,
            num_new=seq.n_blocks - len(hits),
            num_revived=sum(self._ref_counts[block] == 0 for block in hits),
        )

    def num_missing(self, placement: Placement, reserve: int = 0) -> int:
        """Blocks that lack for a placement that is to leave `reserve` available; 0 if none do."""
        return max(placement.num_new + placement.num_revived + reserve - self.num_available, 0)

    def allocate(self, seq: Sequence, placement: Placement) -> None:
        """Give a sequence blocks for all its tokens.

        `placement` must be fresh: nothing taken or returned since it was made.
        """
        table = self._tables.setdefault(seq.seq_id, _BlockTable())
        for block in placement.hits:
            self._cached.pop(block, None)
            self._ref_counts[block] += 1
        table.blocks = [*placement.hits, *(self._take() for _ in range(placement.num_new))]
        table.num_registered = len(placement.hits)
        if self.enable_prefix_caching:
            self._prefix_queries += seq.get_len()
            self._prefix_hits += len(placement.hits) * self.block_size

    def can_append_slot(self, seq: Sequence) -> bool:
        """Whether `append_slot` would find the block it needs, if it needs one."""
        return self.num_available > 0 or seq.n_blocks <= len(self._tables[seq.seq_id].blocks)

    def append_slot(self, seq: Sequence) -> None:
        """Make room for the sequence's newest token."""
        blocks = self._tables[seq.seq_id].blocks
        if seq.n_blocks > len(blocks):
            blocks.append(self._take())

    def mark_computed(self, seq: Sequence) -> None:
        """Let others share the blocks that the last step filled."""
        if not self.enable_prefix_caching:
            return
        table = self._tables[seq.seq_id]
        num_full = seq.get_num_computed_tokens() // self.block_size
        self._hash_blocks(table, seq, num_full)
        for index in range(table.num_registered, num_full):
            block, block_hash = table.blocks[index], table.hashes[index]
            # Sequences that were prefilled together may have computed the same content twice.
            if block_hash not in self._block_of_hash:
                self._block_of_hash[block_hash] = block
                self._hash_of_block[block] = block_hash
        table.num_registered = max(table.num_registered, num_full)

    def free(self, seq: Sequence) -> None:
        """Take a sequence's blocks back; without any, nothing happens."""
        table = self._tables.pop(seq.seq_id, None)
        if table is None:
            return
        # Last block first: a prefix is worth more than what follows it.
        for block in reversed(table.blocks):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] > 0:
                continue
            if block in self._hash_of_block:
                self._cached[block] = None
            else:
                self._free.append(block)

    def check(self) -> None:
        """Assert that every block is in one state and counted as often as tables hold it."""
        holders = Counter(block for table in self._tables.values() for block in table.blocks)
        used = set(holders)
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        blocks = sorted((*used, *free, *cached))
        assert blocks == list(range(self.num_blocks)), "a block is lost, or in two states"
        for block, count in enumerate(self._ref_counts):
            assert count == holders[block], f"block {block}: {count} != {holders[block]}"
        assert cached <= set(self._hash_of_block), "a cached block has no hash"
        assert not free & set(self._hash_of_block), "a free block has a hash"
        assert {h: b for b, h in self._hash_of_block.items()} == self._block_of_hash

    def _take(self) -> int:
        if self._free:
            block = self._free.popleft()
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_of_hash[self._hash_of_block.pop(block)]
        self._ref_counts[block] = 1
        return block

    def _hash_blocks(self, table: _BlockTable, seq: Sequence, num_blocks: int) -> None:
        """Extend the table's chain of hashes to `num_blocks` blocks."""
        token_ids = seq.get_token_ids()
        for index in range(len(table.hashes), num_blocks):
            # What else decides the content salts the first block, and so the whole chain.
            parent = table.hashes[-1] if table.hashes else repr(seq.extra_hash()).encode()
            start = index * self.block_size
            block_tokens = array("q", token_ids[start : start + self.block_size])
            digest = blake2b(parent, digest_size=16)
            digest.update(block_tokens.tobytes())
            table.hashes.append(digest.digest())
