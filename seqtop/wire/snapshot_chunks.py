"""The messages of a large snapshot, encoded piece by piece.

A viewer decodes the first part while the engine encodes the next one. Chunks that fit into the
processor's cache are also encoded, checked and copied several times as fast as one large block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, cast

import msgspec

from seqtop.wire import codec
from seqtop.wire.messages import CachedBlocks
from seqtop.wire.snapshot import RequestSnapshot, Snapshot, SnapshotPart

CHUNK_BYTES = 2**18
"""The approximate size of a chunk. A request that is larger has a chunk of its own."""

MAX_CHUNKS = 1_024
"""A limit that no snapshot of up to 512 MiB reaches: the chunks after the first half of this number
are four times as large."""

_ARRAY_32: Final = b"\xdd"
"""The MessagePack header of an array. The number of elements follows in four bytes."""


class SnapshotChunk(NamedTuple):
    """Some of the requests and cached blocks of a snapshot, encoded without headers."""

    requests: bytearray
    num_requests: int
    cached_blocks: bytearray
    num_runs: int


def chunks(
    requests: Iterable[RequestSnapshot], cached_blocks: Iterable[CachedBlocks]
) -> Iterator[SnapshotChunk]:
    """Yields the encoded requests and cached blocks; at least one chunk.

    Raises:
        WireError: A value has no form on the wire.
    """
    whole, runs = iter(requests), iter(cached_blocks)
    for number in itertools.count():
        size = CHUNK_BYTES if number < MAX_CHUNKS // 2 else 4 * CHUNK_BYTES
        chunk = SnapshotChunk(*_fill(whole, size), *_fill(runs, size))
        if number and not chunk.num_requests and not chunk.num_runs:
            return
        yield chunk


def message(head: Snapshot, of_whole: Iterable[SnapshotChunk]) -> bytes:
    """Returns the snapshot as one message."""
    all_chunks = list(of_whole)
    return _encode(
        head,
        SnapshotChunk(
            bytearray().join(chunk.requests for chunk in all_chunks),
            sum(chunk.num_requests for chunk in all_chunks),
            bytearray().join(chunk.cached_blocks for chunk in all_chunks),
            sum(chunk.num_runs for chunk in all_chunks),
        ),
    )


def messages(head: Snapshot, of_whole: Iterator[SnapshotChunk]) -> Iterator[bytes]:
    """Yields the snapshot, followed by its parts if there is more than one chunk."""
    first, following = next(of_whole), next(of_whole, None)
    yield _encode(msgspec.structs.replace(head, has_parts=following is not None), first)
    for index in itertools.count():
        if following is None:
            return
        chunk, following = following, next(of_whole, None)
        yield _encode(SnapshotPart(index=index, is_last=following is None), chunk)


def _fill(entries: Iterator[Any], size: int) -> tuple[bytearray, int]:
    """Returns entries until they have `size` bytes, and their number."""
    encoded, count = bytearray(), 0
    while len(encoded) < size and (entry := next(entries, None)) is not None:
        codec.encode_into(entry, encoded)
        count += 1
    return encoded, count


def _encode(empty: Snapshot | SnapshotPart, chunk: SnapshotChunk) -> bytes:
    """Encodes a message with the entries of a chunk."""
    changes = {"requests": _array(chunk.requests, chunk.num_requests)}
    if empty.cached_blocks is not None:
        changes["cached_blocks"] = _array(chunk.cached_blocks, chunk.num_runs)
    return codec.encode(msgspec.structs.replace(empty, **cast(Any, changes)))


def _array(elements: bytearray, count: int) -> msgspec.Raw:
    return msgspec.Raw(_ARRAY_32 + count.to_bytes(4, "big") + elements)
