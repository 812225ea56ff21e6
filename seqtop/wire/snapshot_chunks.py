"""A large struct cut into parts, each encoded bit by bit, so that others have their turn meanwhile.

Parts, because whoever receives the first can decode it while the next is made, and because memory
that has just been used is used again: what fits into a processor's cache is encoded, checked and
copied several times as fast as what does not.

Bit by bit, because encoding holds the interpreter's lock. A state of thousands of sequences takes a
good part of a second, for which an engine's thread would have to wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from seqtop.wire import codec

PART_BYTES = 2**18
"""About how large a part is; what cannot be cut may be larger."""

MAX_PARTS = 1_024
"""No struct of up to 512 MiB has more: those behind the first half are four times as large."""

PIECE_SECONDS = 0.0002
"""About how long the lock is held at a time."""

PAUSE_SECONDS = 0.00005
"""How long it is then left to others: whoever waits for it has woken by then."""

_ONE_ENTRY: Final = b"\x81"
"""How MessagePack begins a map of one entry."""
_LONG_MAP: Final = b"\xdf"
"""How it begins one whose number of entries, in four bytes, follows."""

_Entries = Iterator[tuple[Any, Any]]


def cut(struct: object, *, pause: Callable[[float], object] = time.sleep) -> Iterator[bytearray]:
    """`struct` as a map, and then what did not fit into that: maps to be merged into it.

    Only a struct's dictionaries are cut, between two of their entries. A further map has one field,
    and in it entries of that dictionary. Nobody may change the struct meanwhile.

    Raises:
        WireError: something in it has no form on the wire.
    """
    assert isinstance(struct, msgspec.Struct)
    turns = _Turns(pause)
    names = struct.__struct_encode_fields__
    left: list[tuple[str, _Entries]] = []
    whole = bytearray(_LONG_MAP + len(names).to_bytes(4, "big"))
    for field, name in zip(struct.__struct_fields__, names, strict=True):
        codec.encode_into(name, whole)
        value = getattr(struct, field)
        if isinstance(value, dict):
            entries = iter(value.items())
            _fill(whole, entries, turns, PART_BYTES)
            left.append((name, entries))
        else:
            codec.encode_into(value, whole)
            turns.next()
    yield whole
    num_parts = 0
    for name, entries in left:
        while True:
            part = bytearray(_ONE_ENTRY)
            codec.encode_into(name, part)
            size = PART_BYTES if num_parts < MAX_PARTS // 2 else 4 * PART_BYTES
            if not _fill(part, entries, turns, size):
                break
            yield part
            num_parts += 1


def _fill(part: bytearray, entries: _Entries, turns: _Turns, size: int) -> int:
    """Append a map of as many entries as `size` bytes are enough for; returns how many it has."""
    count, place = 0, len(part) + 1
    part += _LONG_MAP + bytes(4)
    while len(part) < size and (entry := next(entries, None)) is not None:
        key, value = entry
        codec.encode_into(key, part)
        codec.encode_into(value, part)
        count += 1
        turns.next()
    part[place : place + 4] = count.to_bytes(4, "big")
    return count


class _Turns:
    """Pauses when the lock has been held for long enough."""

    def __init__(self, pause: Callable[[float], object]) -> None:
        self._pause = pause
        self._began = time.perf_counter()

    def next(self) -> None:
        """To be called often."""
        if time.perf_counter() - self._began >= PIECE_SECONDS:
            self._pause(PAUSE_SECONDS)
            self._began = time.perf_counter()
