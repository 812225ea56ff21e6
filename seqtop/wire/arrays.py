"""Arrays of machine numbers with the same bytes in memory and on the wire.

A state has three numbers for each token. In lists, ten thousand sequences would be millions of
Python objects, which a late viewer would have to create one by one. Arrays are copied as a whole.

An array is as narrow as its numbers allow, without loss: an integer that does not fit makes it
wider, and so does a float that single precision, in which models compute, cannot represent.

On the wire an array is a MessagePack extension. Its type code is the ASCII letter of such numbers
in Python's `array` and `struct` modules. Its data are the numbers, little-endian.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.msgpack import Ext

if TYPE_CHECKING:
    _IntArray = array[int]
    _FloatArray = array[float]
else:  # which Python 3.11 cannot subscript
    _IntArray = _FloatArray = array

_WIDER: Final = {"b": "h", "h": "i", "i": "q"}
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


class Ints(_IntArray):
    """Signed integers of 1, 2, 4 or 8 bytes each (type codes b, h, i, q)."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Sequence[int]) -> Ints:
        """Creates an array with 4 bytes per value, or more if a value requires it."""
        return cls("i").plus(values)

    def plus(self, values: Sequence[int]) -> Ints:
        """Appends values; returns this array, or a new one if it has to be wider.

        Values that do not fit into 8 bytes are limited to the nearest one that does.
        """
        length = len(self)
        try:
            self.extend(values)
        except OverflowError:
            del self[length:]
        else:
            return self
        if wider := _WIDER.get(self.typecode):
            return Ints(wider, self).plus(values)
        return self.plus([max(_SMALLEST, min(value, _LARGEST)) for value in values])

    def copy(self) -> Ints:
        """Returns a copy of the array."""
        return Ints(self.typecode, self)

    def __copy__(self) -> Ints:
        return self.copy()

    def __deepcopy__(self, _: object) -> Ints:
        return self.copy()

    def __eq__(self, other: object) -> bool:
        """Returns whether an array of any width, or a list, has the same numbers."""
        return self.tolist() == other if isinstance(other, list) else super().__eq__(other)


class Floats(_FloatArray):
    """Floats of 4 or 8 bytes each (type codes f, d)."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Sequence[float]) -> Floats:
        """Creates an array, in single precision if that represents all values exactly."""
        return cls("f").plus(values)

    def plus(self, values: Sequence[float]) -> Floats:
        """Appends values; returns this array, or a new one if it has to be wider."""
        length = len(self)
        self.extend(values)
        if self.typecode == "d" or not values:
            return self
        is_exact = (
            self[-1] == values[0] if len(values) == 1 else self[length:].tolist() == [*values]
        )
        if is_exact:
            return self
        del self[length:]
        return Floats("d", self).plus(values)

    def copy(self) -> Floats:
        """Returns a copy of the array."""
        return Floats(self.typecode, self)

    def __copy__(self) -> Floats:
        return self.copy()

    def __deepcopy__(self, _: object) -> Floats:
        return self.copy()

    def __eq__(self, other: object) -> bool:
        """Returns whether an array of any width, or a list, has the same numbers."""
        return self.tolist() == other if isinstance(other, list) else super().__eq__(other)


_EMPTY: Final[dict[int, Callable[[], Ints | Floats]]] = {
    **{ord(code): partial(Ints, code) for code in "bhiq"},
    **{ord(code): partial(Floats, code) for code in "fd"},
}
CODES: Final = frozenset(_EMPTY)
"""The extension types of arrays."""

_IS_BIG: Final = sys.byteorder == "big"


def pack(numbers: Ints | Floats) -> Ext:
    """Encodes an array as an extension."""
    code = ord(numbers.typecode)
    if not _IS_BIG:
        return Ext(code, memoryview(numbers))
    swapped = numbers.copy()
    swapped.byteswap()
    return Ext(code, swapped.tobytes())


def unpack(code: int, data: memoryview) -> Ints | Floats | Ext:
    """Decodes an extension of a code in `CODES`; returns it unchanged if it is malformed."""
    numbers = _EMPTY[code]()
    try:
        numbers.frombytes(data)
    except ValueError:  # the length is not a multiple of the item size
        return Ext(code, bytes(data))  # `as_array` then refuses it, and the error names the field
    if _IS_BIG:
        numbers.byteswap()
    return numbers


def as_array(kind: type[Ints] | type[Floats], obj: Any) -> Ints | Floats:
    """Converts a decoded array or list of numbers to an array of a kind.

    Raises:
        TypeError: `obj` is neither.
    """
    if isinstance(obj, kind):
        return obj
    if isinstance(obj, list):
        return kind.of(obj)
    if isinstance(obj, Ext):
        size, code = memoryview(obj.data).nbytes, chr(obj.code)
        raise TypeError(f"{size} bytes are not a whole number of items of type {code!r}")
    received = type(obj).__name__.lower()
    raise TypeError(f"expected an array of {kind.__name__.lower()}, got {received}")
