"""A large struct encoded bit by bit, so that other threads have their turn in between.

Encoding holds the interpreter's lock from its first byte to its last. A state of thousands of
sequences takes a good part of a second, for which an engine's thread would have to wait.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from seqtop.wire import codec

PIECE_SECONDS = 0.0003
"""About how long the lock is held at a time."""

PAUSE_SECONDS = 0.00005
"""How long it is then left to others: whoever waits for it has woken by then."""

_FIRST_ENTRIES, _MOST_ENTRIES = 16, 4096


def encode_into(
    buffer: bytearray, struct: object, *, pause: Callable[[float], object] = time.sleep
) -> None:
    """Append `struct` to `buffer`, as `codec.encode` would have it; nobody may change it meanwhile.

    A struct's dictionaries are encoded some entries at a time; anything else whole.

    Raises:
        WireError: something in it has no form on the wire.
    """
    for piece in _pieces(struct):
        buffer += piece
        pause(PAUSE_SECONDS)


def _pieces(struct: object) -> Iterator[bytes | memoryview]:
    if not isinstance(struct, msgspec.Struct) or struct.__struct_config__.array_like:
        yield codec.encode(struct)
        return
    names = struct.__struct_encode_fields__
    yield _map_header(len(names))
    for field, name in zip(struct.__struct_fields__, names, strict=True):
        yield codec.encode(name)
        value = getattr(struct, field)
        if isinstance(value, dict):
            yield from _entries(value)
        else:
            yield codec.encode(value)


def _entries(values: dict[Any, Any]) -> Iterator[bytes | memoryview]:
    """A map, so many of its entries at a time as the time for a piece is enough for."""
    yield _map_header(len(values))
    left, num = iter(values.items()), _FIRST_ENTRIES
    while some := dict(itertools.islice(left, num)):
        started = time.perf_counter()
        encoded = codec.encode(some)
        yield memoryview(encoded)[len(_map_header(len(some))) :]
        spent = time.perf_counter() - started
        num = max(min(int(num * PIECE_SECONDS / max(spent, 1e-9)), 2 * num, _MOST_ENTRIES), 1)


def _map_header(length: int) -> bytes:
    """How MessagePack begins a map of so many entries."""
    if length < 16:
        return bytes([0x80 | length])
    if length < 2**16:
        return b"\xde" + length.to_bytes(2, "big")
    return b"\xdf" + length.to_bytes(4, "big")
