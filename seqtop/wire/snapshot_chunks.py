"""A large struct, encoded as a series of MessagePack maps.

A viewer decodes the first chunk while the engine encodes the next one. Chunks that fit into the
processor's cache are also encoded, checked and copied several times as fast as one large block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from seqtop.wire import codec

CHUNK_BYTES = 2**18
"""The approximate size of a chunk. A value that cannot be divided may make it larger."""

MAX_CHUNKS = 1_024
"""A limit that no struct of up to 512 MiB reaches: the chunks after the first half of this number
are four times as large."""

_MAP_OF_ONE: Final = b"\x81"
"""The MessagePack header of a map with one entry."""
_MAP_32: Final = b"\xdf"
"""The MessagePack header of a map. The number of entries follows in four bytes."""

_Entries = Iterator[tuple[Any, Any]]


def encode(struct: object) -> Iterator[bytearray]:
    """Yields a struct as a map, followed by maps to merge into it.

    Only the struct's dictionaries are divided, between two of their entries. Each following map has
    one field with further entries of that dictionary. The struct must not change meanwhile.

    Raises:
        WireError: A value has no form on the wire.
    """
    assert isinstance(struct, msgspec.Struct)
    names = struct.__struct_encode_fields__
    unfinished: list[tuple[str, _Entries]] = []
    first = bytearray(_MAP_32 + len(names).to_bytes(4, "big"))
    for field, name in zip(struct.__struct_fields__, names, strict=True):
        codec.encode_into(name, first)
        value = getattr(struct, field)
        if isinstance(value, dict):
            entries = iter(value.items())
            _append_map(first, entries, CHUNK_BYTES)
            unfinished.append((name, entries))
        else:
            codec.encode_into(value, first)
    yield first
    num_chunks = 0
    for name, entries in unfinished:
        while True:
            chunk = bytearray(_MAP_OF_ONE)
            codec.encode_into(name, chunk)
            size = CHUNK_BYTES if num_chunks < MAX_CHUNKS // 2 else 4 * CHUNK_BYTES
            if not _append_map(chunk, entries, size):
                break
            yield chunk
            num_chunks += 1


def _append_map(chunk: bytearray, entries: _Entries, size: int) -> int:
    """Appends a map of entries until the chunk has `size` bytes; returns the number of entries."""
    count, count_offset = 0, len(chunk) + 1
    chunk += _MAP_32 + bytes(4)
    while len(chunk) < size and (entry := next(entries, None)) is not None:
        key, value = entry
        codec.encode_into(key, chunk)
        codec.encode_into(value, chunk)
        count += 1
    chunk[count_offset : count_offset + 4] = count.to_bytes(4, "big")
    return count
