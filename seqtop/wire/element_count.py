"""A limit on the number of elements in a message, checked before the message is decoded.

Decoding turns one byte, such as an empty array, into an object of up to 100 bytes. The number of
elements bounds that memory: with a limit of 2**22 elements, a message of any size needs at most
about 400 MiB in addition to its text and its arrays of numbers.
"""

from __future__ import annotations

from typing import Final

from seqtop.wire.errors import WireError

MAX_ELEMENTS: Final = 2**22
"""The limit for a message. The prompt of a request may have 4 million tokens."""

MAX_STATE_ELEMENTS: Final = 2**26
"""The limit for a whole state. Without log-probabilities, a sequence takes about 130 elements."""


def count_elements(data: bytes | bytearray | memoryview, limit: int) -> int:
    """Returns the number of elements in encoded MessagePack, including all nested ones.

    A key and its value are two elements, and an array is one in addition to its own elements. An
    extension is a single element. The lengths of arrays are believed and not verified, so a
    malformed message may have fewer. The time is proportional to the number of elements, up to the
    limit, whatever the size of the message.

    Raises:
        WireError: There are more than `limit` elements.
    """
    position, count, end = 0, 1, len(data)
    widths = _WIDTHS
    while position < end:
        first = data[position]
        if width := widths[first]:
            position += width
            continue
        position += 1
        if length_bytes := _LENGTH_BYTES[first]:
            length = int.from_bytes(data[position : position + length_bytes], "big")
            position += length_bytes
        else:
            length = first & 0x0F
        if first in _MAPS:
            count += 2 * length
        elif first in _ARRAYS:
            count += length
        else:
            position += length + (first in _EXTENSIONS)
        if count > limit:
            raise WireError(f"it has more than {limit:,} elements")
    return count


def check_elements(data: bytes | bytearray | memoryview, limit: int = MAX_ELEMENTS) -> None:
    """Checks that encoded MessagePack has at most `limit` elements.

    An element has at least one byte, so data of up to `limit` bytes are not examined.

    Raises:
        WireError: There are more.
    """
    if len(data) > limit:
        count_elements(data, limit)


# The format is https://github.com/msgpack/msgpack/blob/master/spec.md.
_MAPS: Final = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
_ARRAYS: Final = frozenset([*range(0x90, 0xA0), 0xDC, 0xDD])
_EXTENSIONS: Final = frozenset([0xC7, 0xC8, 0xC9])

_FIXED_WIDTHS: Final = {
    0xCA: 5, 0xCB: 9,  # floats
    0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9,  # integers
    0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18,  # extensions
    **{0xA0 + length: 1 + length for length in range(32)},  # strings
}  # fmt: skip

_LENGTHS: Final = {
    0xC4: 1, 0xC5: 2, 0xC6: 4,  # bytes
    0xC7: 1, 0xC8: 2, 0xC9: 4,  # extensions
    0xD9: 1, 0xDA: 2, 0xDB: 4,  # strings
    0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4,  # arrays and maps
}  # fmt: skip

_LENGTH_BYTES: Final = tuple(_LENGTHS.get(first, 0) for first in range(256))
"""The size of the length that follows a first byte; 0 if the first byte contains it."""

_WIDTHS: Final = tuple(
    0 if first in _LENGTHS or first in _MAPS or first in _ARRAYS else _FIXED_WIDTHS.get(first, 1)
    for first in range(256)
)
"""The size of an element by its first byte; 0 if it depends on a length."""
