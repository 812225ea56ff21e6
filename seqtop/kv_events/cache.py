"""What KV-cache events tell of a prefix cache: its blocks, their chains, what came and went.

`KvCache.apply` is the only writer. Physical blocks are not named by these events: a block is known
by its hash, and the same content in two tiers (GPU memory, CPU memory …) is one block in two
places. Each place has a cell, which is ours alone: the first that was free when the block came, so
that nothing moves while a block is there.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterator
from itertools import count
from typing import TypeAlias

from msgspec import Struct, field
from sortedcontainers import SortedDict

from seqtop.kv_events.messages import (
    AllBlocksCleared,
    BlockHash,
    BlockRemoved,
    BlockStored,
    EventBatch,
    UnknownEvent,
)

DEFAULT_MAX_BLOCKS = 250_000
"""Cells that are kept. A block of 16 tokens takes some 1.2 kB."""

Key: TypeAlias = tuple[int, BlockHash]
"""A block: its KV-cache group (-1 if it is not told) and its hash."""


class PrefixTree(Struct, eq=False):
    """Blocks that begin alike: all that descend from one first block."""

    root: Key
    """Its first block, whether or not that is cached (still)."""
    serial: int
    num_blocks: int = 0
    num_tokens: int = 0
    newest: Key | None = None
    """The block that was stored last."""
    seen_at: float = 0.0
    joined: PrefixTree | None = None
    """The tree that this one turned out to be a part of."""


class CachedKvBlock(Struct, eq=False):
    """A block that is cached in one tier at least."""

    key: Key
    parent: Key | None
    """None at the beginning of a prompt. It may not be cached."""
    size: int
    """Tokens in it."""
    token_ids: array[int] | None
    """None if they were not told."""
    tree: PrefixTree
    stored_at: float
    """When it was stored, or stored again, last; epoch seconds of the engine, as all times."""
    seen_at: float
    """When an event last named it, itself or as a parent."""
    lora: str = ""
    kind: str = ""
    """Of its KV-cache group, such as `full_attention`."""
    num_stored: int = 0
    """How often it was stored since it was cached nowhere."""
    copies: dict[str, int] = field(default_factory=dict)
    """How many there are in each tier."""
    cells: dict[str, int] = field(default_factory=dict)
    """Its cell in each of them."""


class Tier(Struct, eq=False):
    """The cells of one medium."""

    cells: list[CachedKvBlock | None] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    """Those that are empty, as a heap."""

    @property
    def num_blocks(self) -> int:
        return len(self.cells) - len(self.free)


class KvCache:
    """All that is known of a prefix cache.

    Args:
        max_blocks: Cells to keep; what is stored beyond them is counted and forgotten.
    """

    def __init__(self, *, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        self.max_blocks = max_blocks
        self.num_batches = 0
        self.num_events = 0
        self.num_stored = 0
        """Blocks stored so far, in any tier."""
        self.num_again = 0
        """Those of them that were in that tier already: computed twice, or reported as reused."""
        self.num_extending = 0
        """Runs of blocks that continue a cached one."""
        self.num_branching = 0
        """Those of them where that one had another continuation: both share what is before."""
        self.num_removed = 0
        self.num_cleared = 0
        """How often the whole cache was."""
        self.num_overflowing = 0
        """Stored blocks that are not shown, because there are too many."""
        self.num_unmatched = 0
        """Removals of blocks that were not known to be cached."""
        self.unknown: dict[str, int] = {}
        """Kinds of events that are not understood, and how many there were."""
        self.time = 0.0
        """Of the last batch."""
        self.data_parallel_rank: int | None = None
        self.gap = ""
        """Why what is known may not be all there is, as half a sentence; empty if it is."""
        self.num_tokens = 0
        """Tokens in all blocks, each counted once."""
        self._forget()

    def _forget(self) -> None:
        self.blocks: dict[Key, CachedKvBlock] = {}
        self.tiers: dict[str, Tier] = {}
        """By medium; the empty name is that of publishers which do not tell."""
        self.num_cells = 0
        self.num_tokens = 0
        self._children: dict[Key, dict[Key, None]] = {}
        self._trees: dict[Key, PrefixTree] = {}
        self._by_size: SortedDict[tuple[int, int], PrefixTree] = SortedDict()
        self._serials = count()

    # What happens.

    def apply(self, batch: EventBatch) -> None:
        """Take in what the next message says."""
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
                    self._forget()
                case UnknownEvent(kind):
                    if kind in self.unknown or len(self.unknown) < _MAX_KINDS:
                        self.unknown[kind] = self.unknown.get(kind, 0) + 1

    def miss(self, why: str) -> None:
        """Messages are missing: until all is cleared, what is known may not be all there is."""
        self.gap = why

    def restart(self) -> None:
        """The engine has been started anew, with an empty cache."""
        self.gap = ""
        self._forget()

    def _store(self, event: BlockStored) -> None:
        group = -1 if event.group_idx is None else event.group_idx
        parent = None if event.parent_block_hash is None else (group, event.parent_block_hash)
        size = event.block_size
        tokens = event.token_ids
        is_told = len(tokens) == size * len(event.block_hashes)
        lora = event.lora_name or ("" if event.lora_id is None else str(event.lora_id))
        medium = event.medium or ""
        self._note_parent(parent, event, group)
        for index, block_hash in enumerate(event.block_hashes):
            key = (group, block_hash)
            self.num_stored += 1
            block = self.blocks.get(key)
            if block is None:
                if self.num_cells >= self.max_blocks:
                    self.num_overflowing += 1
                    parent = key
                    continue
                part = array("q", tokens[index * size : (index + 1) * size]) if is_told else None
                block = CachedKvBlock(
                    key, parent, size, part, self._tree_for(key, parent), self.time, self.time
                )
                block.lora, block.kind = lora, event.kv_cache_spec_kind or ""
                self._add(block)
            self._put(block, medium)
            block.stored_at = block.seen_at = self.time
            tree = found(block.tree)
            tree.newest, tree.seen_at = key, self.time
            parent = key

    def _note_parent(self, parent: Key | None, event: BlockStored, group: int) -> None:
        """Count what a run of blocks tells of reuse."""
        before = self.blocks.get(parent) if parent is not None else None
        if before is None or not event.block_hashes:
            return
        before.seen_at = self.time
        if (group, event.block_hashes[0]) in self.blocks:
            return  # nothing new
        self.num_extending += 1
        self.num_branching += bool(self._children.get(before.key))

    def _put(self, block: CachedKvBlock, medium: str) -> None:
        block.num_stored += 1
        copies = block.copies.get(medium, 0)
        if copies:
            self.num_again += 1
        elif self.num_cells >= self.max_blocks:
            self.num_overflowing += 1
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
                self.num_unmatched += 1
                continue
            block.seen_at = self.time
            block.copies[medium] -= 1
            if not block.copies[medium]:
                self._take(block, medium)
            if not block.copies:
                self._drop(block)

    def _take(self, block: CachedKvBlock, medium: str) -> None:
        del block.copies[medium]
        cell = block.cells.pop(medium)
        tier = self.tiers[medium]
        tier.cells[cell] = None
        heapq.heappush(tier.free, cell)
        self.num_cells -= 1
        if not tier.num_blocks:
            del self.tiers[medium]

    # Chains and trees.

    def _add(self, block: CachedKvBlock) -> None:
        self.blocks[block.key] = block
        self.num_tokens += block.size
        if block.parent is not None:
            self._children.setdefault(block.parent, {})[block.key] = None
        self._resize(block.tree, 1, block.size)

    def _drop(self, block: CachedKvBlock) -> None:
        del self.blocks[block.key]
        self.num_tokens -= block.size
        if block.parent is not None:
            siblings = self._children[block.parent]
            del siblings[block.key]
            if not siblings:
                del self._children[block.parent]
        self._resize(found(block.tree), -1, -block.size)

    def _tree_for(self, key: Key, parent: Key | None) -> PrefixTree:
        """The tree of a new block, with which it may join what was known of its continuations."""
        own = self._trees.get(key)
        if parent is None:
            tree = own or self._new_tree(key)
        elif parent in self.blocks:
            tree = found(self.blocks[parent].tree)
        else:
            tree = self._trees.get(parent) or self._new_tree(parent)
        if own is not None and own is not tree:
            self._join(own, tree)
        return tree

    def _new_tree(self, root: Key) -> PrefixTree:
        tree = self._trees[root] = PrefixTree(root, next(self._serials))
        return tree

    def _join(self, part: PrefixTree, whole: PrefixTree) -> None:
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

    # What can be asked.

    @property
    def num_trees(self) -> int:
        return len(self._by_size)

    def trees(self, start: int, stop: int) -> list[PrefixTree]:
        """The trees from place `start` to `stop`, the one with the most blocks first."""
        return list(self._by_size.values()[start:stop])

    def place(self, tree: PrefixTree) -> int | None:
        """Where a tree stands among all."""
        size = (-tree.num_blocks, tree.serial)
        return self._by_size.index(size) if size in self._by_size else None

    def tree(self, root: Key) -> PrefixTree | None:
        return self._trees.get(root)

    def children(self, key: Key) -> list[Key]:
        """The cached blocks that continue a block, the oldest first."""
        return list(self._children.get(key, ()))

    def num_children(self, key: Key) -> int:
        return len(self._children.get(key, ()))

    def path(self, block: CachedKvBlock) -> list[CachedKvBlock]:
        """The chain from the first block to this one, as far as it is cached."""
        chain = list(self._up(block))
        chain.reverse()
        return chain

    def _up(self, block: CachedKvBlock) -> Iterator[CachedKvBlock]:
        seen = {block.key}  # hashes that an engine makes have no cycles; those of others might
        yield block
        while block.parent is not None and block.parent not in seen:
            before = self.blocks.get(block.parent)
            if before is None:
                return
            seen.add(before.key)
            yield before
            block = before

    def member(self, tree: PrefixTree) -> CachedKvBlock | None:
        """A block of a tree to begin with: its first if that is cached, or the newest."""
        return self.blocks.get(tree.root) or (
            self.blocks.get(tree.newest) if tree.newest is not None else None
        )


_MAX_KINDS = 20


def found(tree: PrefixTree) -> PrefixTree:
    """The tree that a tree has become part of, which may be itself."""
    while tree.joined is not None:
        if tree.joined.joined is not None:
            tree.joined = tree.joined.joined
        tree = tree.joined
    return tree
