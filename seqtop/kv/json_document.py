"""The prefix cache that KV-cache events describe, as a JSON document (docs/kv-events.md)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from seqtop.kv.cache import CachedKvBlock, KvCache, merged_tree
from seqtop.kv.messages import BlockHash
from seqtop.text.sanitize import indented_json
from seqtop.transport.connection import Connection, ConnectionState

Hash: TypeAlias = str | int
"""The hash of a block: bytes in hexadecimal, or a number."""


class ConnectionDocument(msgspec.Struct, kw_only=True):
    """The connection with the engine, as JSON."""

    endpoint: str
    state: ConnectionState
    num_messages: int
    num_missed: int
    num_errors: int
    last_error: str | None


class TreeDocument(msgspec.Struct, kw_only=True):
    """The blocks that begin with the same block, as JSON."""

    root: Hash
    group: int | None
    num_blocks: int
    num_tokens: int


class BlockDocument(msgspec.Struct, kw_only=True):
    """A cached block, as JSON."""

    hash: Hash
    group: int | None
    parent: Hash | None
    has_unknown_parent: bool
    tree: Hash
    """The hash of the root of its tree."""
    copies: dict[str, int]
    """The copies of it by storage tier."""
    size: int
    """Tokens."""
    token_ids: list[int] | None
    lora: str | None
    window: int | None
    locality: str | None
    ownership: str | None
    session_id: str | None
    stored_at: float | None
    """Epoch seconds, as all times."""
    last_named_at: float | None
    num_stored: int


class KvCacheDocument(msgspec.Struct, kw_only=True):
    """The prefix cache that KV-cache events describe, as JSON."""

    connection: ConnectionDocument
    complete: bool
    """True if no event is known to be missing."""
    gap: str | None
    time: float | None
    """Epoch seconds of the last batch of events."""
    data_parallel_rank: int | None
    num_batches: int
    num_events: int
    num_stored: int
    num_stored_again: int
    num_extending: int
    num_branching: int
    num_removed: int
    num_removed_unknown: int
    num_cleared: int
    num_not_shown: int
    kinds_not_understood: dict[str, int]
    num_blocks: int
    num_tokens: int
    tiers: dict[str, int]
    """Blocks by storage tier."""
    trees: list[TreeDocument]
    blocks: list[BlockDocument]


def document(cache: KvCache, connection: Connection) -> KvCacheDocument:
    """Returns the document. Hashes of bytes are hexadecimal, others numbers."""
    return KvCacheDocument(
        connection=ConnectionDocument(
            endpoint=connection.endpoint,
            state=connection.state,
            num_messages=connection.num_messages,
            num_missed=connection.num_missed,
            num_errors=connection.num_errors,
            last_error=connection.last_error or None,
        ),
        complete=bool(cache.num_batches and not cache.gap and not cache.num_not_shown),
        gap=cache.gap or None,
        time=cache.time if cache.num_batches else None,
        data_parallel_rank=cache.data_parallel_rank,
        num_batches=cache.num_batches,
        num_events=cache.num_events,
        num_stored=cache.num_stored,
        num_stored_again=cache.num_stored_again,
        num_extending=cache.num_extending,
        num_branching=cache.num_branching,
        num_removed=cache.num_removed,
        num_removed_unknown=cache.num_removed_unknown,
        num_cleared=cache.num_cleared,
        num_not_shown=cache.num_not_shown,
        kinds_not_understood=cache.unknown,
        num_blocks=len(cache.blocks),
        num_tokens=cache.num_tokens,
        tiers={medium: tier.num_blocks for medium, tier in cache.tiers.items()},
        trees=[
            TreeDocument(
                root=_hash(tree.root[1]),
                group=_group(tree.root[0]),
                num_blocks=tree.num_blocks,
                num_tokens=tree.num_tokens,
            )
            for tree in cache.trees(0, cache.num_trees)
        ],
        blocks=[_block(block) for block in cache.blocks.values()],
    )


def encode(cache: KvCache, connection: Connection) -> bytes:
    """Returns the document as indented JSON that is safe to print on a terminal."""
    return indented_json(document(cache, connection)).encode()


def _block(block: CachedKvBlock) -> BlockDocument:
    return BlockDocument(
        hash=_hash(block.key[1]),
        group=_group(block.key[0]),
        parent=None if block.parent is None else _hash(block.parent[1]),
        has_unknown_parent=block.has_unknown_parent,
        tree=_hash(merged_tree(block.tree).root[1]),
        copies=block.copies,
        size=block.size,
        token_ids=None if block.token_ids is None else block.token_ids.tolist(),
        lora=block.lora or None,
        window=block.window,
        locality=block.locality or None,
        ownership=block.ownership or None,
        session_id=block.session_id or None,
        stored_at=block.stored_at,
        last_named_at=block.last_named_at,
        num_stored=block.num_stored,
    )


def _hash(block_hash: BlockHash) -> Hash:
    return block_hash.hex() if isinstance(block_hash, bytes) else block_hash


def _group(group: int) -> int | None:
    return None if group < 0 else group
