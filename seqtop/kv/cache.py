"""A prefix cache as KV-cache events describe it: blocks, their chains and their history.

`KvCache.apply` is the only writer. The events do not contain physical block numbers. A block is
identified by its hash, and the same content in two tiers (GPU memory, CPU memory …) is one block
with two copies. For the display, each copy has a cell: the first one that was free when the block
was stored. A block never changes its cell.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from itertools import count
from typing import TypeAlias

from msgspec import Struct, field
from sortedcontainers import SortedDict

from seqtop.kv.messages import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    EventBatch,
    UnknownEvent,
)

DEFAULT_MAX_BLOCKS = 250_000
"""The limit on the number of cells. A block of 16 tokens takes some 1.2 kB."""

MAX_TOKEN_IDS = 2**25
"""The limit on the number of token ids in all blocks, 8 bytes each. 250,000 blocks of 128 tokens
have fewer."""

Key: TypeAlias = tuple[int, BlockHash]
"""The identity of a block: its KV-cache group (-1 if not given) and its hash."""


class PrefixTree(Struct, eq=False):
    """All blocks that descend from one first block."""

    root: Key
    """The first block, which may not be cached."""
    serial: int
    num_blocks: int = 0
    num_tokens: int = 0
    newest: Key | None = None
    """The block stored last."""
    last_named_at: float = 0.0
    joined: PrefixTree | None = None
    """The tree that this one was merged into."""


class CachedKvBlock(Struct, eq=False):
    """A block that is cached in at least one tier."""

    key: Key
    parent: Key | None
    """The preceding block, which may not be cached; None at the start of a prompt, or if it is
    unknown."""
    size: int
    """The number of tokens in the block."""
    token_ids: array[int] | None
    """The token ids; None if they were not sent."""
    tree: PrefixTree
    stored_at: float
    """The time of the last store event, in seconds since the epoch by the engine's clock."""
    last_named_at: float
    """The time of the last event that named the block, itself or as a parent."""
    has_unknown_parent: bool = False
    """True if the event left out blocks, one of which may be the preceding one."""
    lora: str = ""
    kind: str = ""
    """The kind of its KV-cache group, such as `full_attention`."""
    window: int | None = None
    """The sliding window of its KV-cache group in tokens, if it has one."""
    locality: str = ""
    ownership: str = ""
    session_id: str = ""
    """The session that stored or reused the block last."""
    num_stored: int = 0
    """The number of store events since the block was last absent from all tiers."""
    copies: dict[str, int] = field(default_factory=dict)
    """The number of copies by medium."""
    cells: dict[str, int] = field(default_factory=dict)
    """The cell by medium."""


class Tier(Struct, eq=False):
    """The cells of one medium."""

    cells: list[CachedKvBlock | None] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    """The empty cells, as a heap."""

    @property
    def num_blocks(self) -> int:
        """The number of cells in use."""
        return len(self.cells) - len(self.free)


class KvCache:
    """The blocks and counters of a prefix cache.

    Args:
        max_blocks: The limit on the number of cells. Blocks beyond it are only counted.
    """

    def __init__(self, *, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self.num_batches = 0
        self.num_events = 0
        self.num_stored = 0
        """The number of blocks stored so far, in any tier."""
        self.num_stored_again = 0
        """The part of `num_stored` that was already in its tier: computed twice, or reported as
        reused."""
        self.num_extending = 0
        """The number of runs of blocks that continue a cached block."""
        self.num_branching = 0
        """The part of `num_extending` that shares a prefix with another continuation."""
        self.num_removed = 0
        self.num_cleared = 0
        """The number of times that the whole cache was cleared."""
        self.num_not_shown = 0
        """The number of stored blocks that exceeded `max_blocks` or `MAX_TOKEN_IDS` and are not
        shown."""
        self.num_removed_unknown = 0
        """The number of removals of blocks that were not cached."""
        self.unknown: dict[str, int] = {}
        """The number of events of each unknown kind."""
        self.time = 0.0
        """The time of the last batch, in seconds since the epoch."""
        self.data_parallel_rank: int | None = None
        self.gap = ""
        """The reason, as a clause, why blocks may be missing; empty if the cache is complete."""
        self.num_tokens = 0
        """The number of tokens in all blocks, each counted once."""
        self._reset()

    def _reset(self) -> None:
        self.blocks: dict[Key, CachedKvBlock] = {}
        self.tiers: dict[str, Tier] = {}
        """Tiers by medium. The name is empty for publishers that do not send the medium."""
        self.num_cells = 0
        self.num_tokens = 0
        self._num_token_ids = 0
        self._children: dict[Key, dict[Key, None]] = {}
        self._trees: dict[Key, PrefixTree] = {}
        self._by_size: SortedDict[tuple[int, int], PrefixTree] = SortedDict()
        self._serials = count()

    def apply(self, batch: EventBatch) -> None:
        """Updates the cache by the next batch of events."""
        self.num_batches += 1
        self.time = batch.time
        self.data_parallel_rank = batch.data_parallel_rank
        for event in batch.events:
            self.num_events += 1
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    self._remove(event)
                case AllBlocksCleared():
                    self.num_cleared += 1
                    self.gap = ""
                    self._reset()
                case UnknownEvent(kind):
                    if kind in self.unknown or len(self.unknown) < _MAX_UNKNOWN_KINDS:
                        self.unknown[kind] = self.unknown.get(kind, 0) + 1

    def mark_gap(self, reason: str) -> None:
        """Marks the cache as incomplete, until the engine clears it."""
        self.gap = reason

    def restart(self) -> None:
        """Empties the cache after a restart of the engine."""
        self.gap = ""
        self._reset()

    def _store(self, event: BlockStored) -> None:
        group = -1 if event.group_idx is None else event.group_idx
        parent = None if event.parent_block_hash is None else (group, event.parent_block_hash)
        size = event.block_size
        tokens = event.token_ids
        has_tokens = len(tokens) == size * len(event.block_hashes)
        # vLLM leaves out blocks outside of a sliding window, but not their tokens. Which ones is
        # not known.
        has_gaps = len(tokens) > size * len(event.block_hashes)
        if has_gaps:
            parent = None
        lora = event.lora_name or ("" if event.lora_id is None else str(event.lora_id))
        medium = event.medium or ""
        self._count_reuse(parent, event, group)
        for index, block_hash in enumerate(event.block_hashes):
            key = (group, block_hash)
            self.num_stored += 1
            block = self.blocks.get(key)
            if block is None:
                num_token_ids = self._num_token_ids + (size if has_tokens else 0)
                if self.num_cells >= self.max_blocks or num_token_ids > MAX_TOKEN_IDS:
                    self.num_not_shown += 1
                    parent = None if has_gaps else key
                    continue
                self._num_token_ids = num_token_ids
                part = array("q", tokens[index * size : (index + 1) * size]) if has_tokens else None
                block = CachedKvBlock(
                    key, parent, size, part, self._tree_for(key, parent), self.time, self.time
                )
                block.lora, block.kind = lora, event.kv_cache_spec_kind or ""
                block.has_unknown_parent = has_gaps
                block.window = event.kv_cache_spec_sliding_window
                self._add_block(block)
            self._add_copy(block, medium)
            block.stored_at = block.last_named_at = self.time
            block.locality, block.ownership = event.locality or "", event.ownership or ""
            block.session_id = event.session_id or ""
            tree = merged_tree(block.tree)
            tree.newest, tree.last_named_at = key, self.time
            parent = None if has_gaps else key

    def _count_reuse(self, parent: Key | None, event: BlockStored, group: int) -> None:
        before = self.blocks.get(parent) if parent is not None else None
        if before is None or not event.block_hashes:
            return
        before.last_named_at = self.time
        if (group, event.block_hashes[0]) in self.blocks:
            return
        self.num_extending += 1
        self.num_branching += bool(self._children.get(before.key))

    def _add_copy(self, block: CachedKvBlock, medium: str) -> None:
        block.num_stored += 1
        copies = block.copies.get(medium, 0)
        if copies:
            self.num_stored_again += 1
        elif self.num_cells >= self.max_blocks:
            self.num_not_shown += 1
            return
        else:
            tier = self.tiers.setdefault(medium, Tier())
            if tier.free:
                cell = heapq.heappop(tier.free)
                tier.cells[cell] = block
            else:
                cell = len(tier.cells)
                tier.cells.append(block)
            block.cells[medium] = cell
            self.num_cells += 1
        block.copies[medium] = copies + 1

    def _remove(self, event: BlockRemoved) -> None:
        group = -1 if event.group_idx is None else event.group_idx
        for block_hash in event.block_hashes:
            self.num_removed += 1
            block = self.blocks.get((group, block_hash))
            medium = event.medium or ""
            if block is not None and event.medium is None and medium not in block.copies:
                medium = next(iter(block.copies))
            if block is None or medium not in block.copies:
                self.num_removed_unknown += 1
                continue
            block.last_named_at = self.time
            block.copies[medium] -= 1
            if not block.copies[medium]:
                self._remove_copy(block, medium)
            if not block.copies:
                self._remove_block(block)

    def _remove_copy(self, block: CachedKvBlock, medium: str) -> None:
        del block.copies[medium]
        cell = block.cells.pop(medium)
        tier = self.tiers[medium]
        tier.cells[cell] = None
        heapq.heappush(tier.free, cell)
        self.num_cells -= 1
        if not tier.num_blocks:
            del self.tiers[medium]

    def _add_block(self, block: CachedKvBlock) -> None:
        self.blocks[block.key] = block
        self.num_tokens += block.size
        if block.parent is not None:
            self._children.setdefault(block.parent, {})[block.key] = None
        self._resize(block.tree, 1, block.size)

    def _remove_block(self, block: CachedKvBlock) -> None:
        del self.blocks[block.key]
        self.num_tokens -= block.size
        self._num_token_ids -= len(block.token_ids or ())
        if block.parent is not None:
            siblings = self._children[block.parent]
            del siblings[block.key]
            if not siblings:
                del self._children[block.parent]
        self._resize(merged_tree(block.tree), -1, -block.size)

    def _tree_for(self, key: Key, parent: Key | None) -> PrefixTree:
        """Returns the tree of a new block, merged with the tree of its continuations if any."""
        own = self._trees.get(key)
        if parent is None:
            tree = own or self._new_tree(key)
        elif parent in self.blocks:
            tree = merged_tree(self.blocks[parent].tree)
        else:
            tree = self._trees.get(parent) or self._new_tree(parent)
        if own is not None and own is not tree:
            self._merge(own, tree)
        return tree

    def _new_tree(self, root: Key) -> PrefixTree:
        tree = self._trees[root] = PrefixTree(root, next(self._serials))
        return tree

    def _merge(self, part: PrefixTree, whole: PrefixTree) -> None:
        del self._trees[part.root]
        self._by_size.pop((-part.num_blocks, part.serial), None)
        part.joined = whole
        self._resize(whole, part.num_blocks, part.num_tokens)

    def _resize(self, tree: PrefixTree, blocks: int, tokens: int) -> None:
        self._by_size.pop((-tree.num_blocks, tree.serial), None)
        tree.num_blocks += blocks
        tree.num_tokens += tokens
        if tree.num_blocks:
            self._by_size[(-tree.num_blocks, tree.serial)] = tree
        else:
            del self._trees[tree.root]

    @property
    def num_trees(self) -> int:
        """The number of trees with cached blocks."""
        return len(self._by_size)

    def trees(self, start: int, stop: int) -> list[PrefixTree]:
        """Returns the trees at ranks `start` to `stop`, in descending order of blocks."""
        return list(self._by_size.values()[start:stop])

    def rank(self, tree: PrefixTree) -> int | None:
        """Returns the rank of a tree by number of blocks; None if it has no cached blocks."""
        size = (-tree.num_blocks, tree.serial)
        return self._by_size.index(size) if size in self._by_size else None

    def tree(self, root: Key) -> PrefixTree | None:
        """Returns the tree with the given first block."""
        return self._trees.get(root)

    def children(self, key: Key) -> list[Key]:
        """Returns the cached blocks that continue a block, the oldest first."""
        return list(self._children.get(key, ()))

    def num_children(self, key: Key) -> int:
        """Returns the number of cached blocks that continue a block."""
        return len(self._children.get(key, ()))

    def path(self, block: CachedKvBlock) -> list[CachedKvBlock]:
        """Returns the chain of cached blocks that ends with this one."""
        chain = list(self._ancestors(block))
        chain.reverse()
        return chain

    def _ancestors(self, block: CachedKvBlock) -> Iterator[CachedKvBlock]:
        visited = {block.key}  # untrusted input may contain a cycle
        yield block
        while block.parent is not None and block.parent not in visited:
            before = self.blocks.get(block.parent)
            if before is None:
                return
            visited.add(before.key)
            yield before
            block = before

    def member(self, tree: PrefixTree) -> CachedKvBlock | None:
        """Returns the first block of a tree if it is cached, else the newest."""
        return self.blocks.get(tree.root) or (
            self.blocks.get(tree.newest) if tree.newest is not None else None
        )


_MAX_UNKNOWN_KINDS = 20


def merged_tree(tree: PrefixTree) -> PrefixTree:
    """Returns the tree that a tree was merged into, which may be itself."""
    while tree.joined is not None:
        if tree.joined.joined is not None:
            tree.joined = tree.joined.joined
        tree = tree.joined
    return tree
