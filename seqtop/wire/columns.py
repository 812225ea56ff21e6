"""Long columns of numbers: machine numbers in memory, and the very same bytes on the wire.

Of each token a state keeps three numbers. As lists, ten thousand sequences are millions of Python
objects, which whoever joins would have to make one by one; columns are copied whole.

A column is as narrow as what is in it allows, and nothing is lost: an integer that does not fit
makes it wider, and so does a float that single precision, in which models compute, has no place
for.

On the wire a column is a MessagePack extension. Its type code is the letter, in ASCII, by which
Python's `array` and `struct` call such numbers; its data are the numbers, little-endian.
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
        """A column of `values`, of 4 bytes each unless that is too little."""
        return cls("i").plus(values)

    def plus(self, values: Sequence[int]) -> Ints:
        """This column with `values` added; another one, if it has to be wider for them.

        What 8 bytes do not hold is cut down to what they do.
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
        return Ints(self.typecode, self)

    def __copy__(self) -> Ints:
        return self.copy()

    def __deepcopy__(self, _: object) -> Ints:
        return self.copy()

    def __eq__(self, other: object) -> bool:
        """Whether `other`, a column of any width or a list, has the same numbers."""
        return self.tolist() == other if isinstance(other, list) else super().__eq__(other)


class Floats(_FloatArray):
    """Floats of 4 or 8 bytes each (type codes f, d)."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Sequence[float]) -> Floats:
        """A column of `values`, in single precision if that says the same."""
        return cls("f").plus(values)

    def plus(self, values: Sequence[float]) -> Floats:
        """This column with `values` added; another one, if it has to be wider for them."""
        length = len(self)
        self.extend(values)
        if self.typecode == "d" or self[length:].tolist() == list(values):
            return self
        del self[length:]
        return Floats("d", self).plus(values)

    def copy(self) -> Floats:
        return Floats(self.typecode, self)

    def __copy__(self) -> Floats:
        return self.copy()

    def __deepcopy__(self, _: object) -> Floats:
        return self.copy()

    def __eq__(self, other: object) -> bool:
        """Whether `other`, a column of any width or a list, has the same numbers."""
        return self.tolist() == other if isinstance(other, list) else super().__eq__(other)


_EMPTY: Final[dict[int, Callable[[], Ints | Floats]]] = {
    **{ord(code): partial(Ints, code) for code in "bhiq"},
    **{ord(code): partial(Floats, code) for code in "fd"},
}
CODES: Final = frozenset(_EMPTY)
"""Extension types that are columns."""

_IS_BIG: Final = sys.byteorder == "big"


def pack(column: Ints | Floats) -> Ext:
    """The extension that stands for a column."""
    code = ord(column.typecode)
    if not _IS_BIG:
        return Ext(code, memoryview(column))
    turned = column.copy()
    turned.byteswap()
    return Ext(code, turned.tobytes())


def unpack(code: int, data: memoryview) -> Ints | Floats | Ext:
    """The column that an extension of a code in `CODES` stands for; itself, if it is none."""
    column = _EMPTY[code]()
    try:
        column.frombytes(data)
    except ValueError:  # of a length that no number of items has
        return Ext(code, bytes(data))  # for `column` to refuse, which knows the field
    if _IS_BIG:
        column.byteswap()
    return column


def column(kind: type[Ints] | type[Floats], obj: Any) -> Ints | Floats:
    """`obj` as a column of a kind: one that has been unpacked, or a plain array of numbers.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(obj, kind):
        return obj
    if isinstance(obj, list):
        return kind.of(obj)
    if isinstance(obj, Ext):
        size, code = memoryview(obj.data).nbytes, chr(obj.code)
        raise TypeError(f"{size} bytes are no whole number of items of type {code!r}")
    said = type(obj).__name__.lower()
    raise TypeError(f"expected a column of {kind.__name__.lower()}, got {said}")
