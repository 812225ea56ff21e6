"""The limit on the number of elements, on which the memory for hostile messages depends."""

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqtop.sequence import SamplingParams
from seqtop.wire import WireError, codec, parsing
from seqtop.wire.element_count import MAX_ELEMENTS, check_elements, count_elements
from seqtop.wire.messages import Submit

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(), inner, max_size=40),
    max_leaves=60,
)


def number_of_elements(value: Any) -> int:
    if isinstance(value, list):
        return 1 + sum(map(number_of_elements, value))
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(number_of_elements, value.values()))
    return 1


@given(value=VALUES)
def test_all_nested_elements_are_counted(value: Any) -> None:
    data = msgspec.msgpack.encode(value)
    count = number_of_elements(value)
    assert count_elements(data, count) == count
    assert count_elements(memoryview(data), count) == count
    if count > 1:
        with pytest.raises(WireError, match=f"more than {count - 1:,} elements"):
            count_elements(data, count - 1)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_counted_or_refused(data: bytes) -> None:
    with contextlib.suppress(WireError):
        assert 1 <= count_elements(data, 1_000) <= 1_000


@pytest.mark.parametrize("first", [0xDC, 0xDD, 0xDE, 0xDF])
def test_long_arrays_and_maps_are_counted_by_their_length(first: int) -> None:
    data = bytes([first]) + struct.pack(">H" if first in (0xDC, 0xDE) else ">I", 40_000)
    expected = 40_000 if first < 0xDE else 80_000
    assert count_elements(data, 2**20) == expected + 1


def array_of(count: int, element: bytes) -> bytes:
    """Returns an array with one element over and over."""
    return b"\xdd" + struct.pack(">I", count) + element * count


def peak_of(decode: Callable[[], Any]) -> int:
    """Returns the peak of the memory in bytes that a decoder needs until it refuses its data."""
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("element", [b"\x90", b"\x80", b"\xc0", b"\x91\x90", b"\x81\x01\x90"])
@pytest.mark.parametrize(
    ("kind", "start"),
    [
        (list[Any], b""),
        (list[list[int]], b""),
        (Submit, b"\x93\xa6Submit\xa1x\x81\xaaextra_args\x81\xa1a"),
    ],
)
def test_a_message_of_too_many_elements_is_refused_before_it_is_decoded(
    kind: Any, start: bytes, element: bytes
) -> None:
    data = start + array_of(20_000, element)
    assert peak_of(lambda: codec.decode(data, kind, max_elements=2**14)) < 2**16


def test_the_limit_applies_to_every_message() -> None:
    data = array_of(MAX_ELEMENTS + 1, b"\xc0")
    assert peak_of(lambda: parsing.event(data)) < 2**16
    with pytest.raises(WireError, match="more than 4,194,304 elements"):
        parsing.event(data)


@pytest.mark.parametrize(
    ("kind", "element"),
    [
        (list[list[int]], b"\x90"),
        (list[dict[str, int]], b"\x80"),
        (list[str], b"\xa2ab"),
        (list[int], b"\xcd\x10\x10"),
        (list[SamplingParams], b"\x80"),
    ],
)
def test_memory_is_bounded_by_the_number_of_elements(kind: Any, element: bytes) -> None:
    count = 2**13
    data = b"\xdc" + struct.pack(">H", count) + element * count
    tracemalloc.start()
    try:
        decoded = codec.decode(data, kind)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(decoded) == count
    assert peak < count * (1_000 if kind == list[SamplingParams] else 100) + 2**16


def test_a_large_message_of_few_elements_is_accepted() -> None:
    text = "x" * (MAX_ELEMENTS + 1)
    assert codec.decode(codec.encode([text]), list[str]) == [text]
    check_elements(codec.encode([text]))


def test_errors_about_large_data_are_short() -> None:
    data = codec.encode(["x" * 2**20, 1, 2])
    with pytest.raises(WireError) as caught:
        codec.decode(data, Submit)
    assert len(str(caught.value)) < 2_000
    malformed = b"\x93\xa6Submit" + array_of(2**20, b"\x90")
    assert peak_of(lambda: codec.decode(malformed, Submit, max_elements=2**21)) < 2**16
