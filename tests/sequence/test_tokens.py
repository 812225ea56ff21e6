"""Arrays of token ids."""

from array import array

from seqtop.sequence import (
    array_full,
)


def test_array_full() -> None:
    assert array_full(7, 3) == array("l", [7, 7, 7])
    assert array_full(7, 0).typecode == "l"
