"""The codec's own promises: what an error says, and bytes that do not depend on the machine."""

import re
import sys
from array import array
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from seqtop.sequence import (
    ExecuteModelRequest,
    SamplingParams,
    SequenceData,
    SequenceDataDelta,
    SequenceGroupMetadataDelta,
    SequenceGroupState,
    SequenceStage,
)
from seqtop.wire import WireError, codec, decode, encode
from seqtop.wire.error_location import name_of


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91\xdd\xff\xff\xff\xff",
        b"\x91" * 1_000_000,
        b"\x91\x91\xa2\xff\xfe",
        b"\xd4\x05\x00",
        "text",
        None,
        5,
        [1],
        memoryview(b"abcd")[::2],
    ],
    # Not its repr, which tells an address for a memoryview: workers must agree on the ids.
    ids=lambda data: type(data).__name__,
)
def test_whatever_is_not_an_encoding_is_a_wire_error(data: Any) -> None:
    for target in (ExecuteModelRequest, SequenceData, SamplingParams, list[int]):
        with pytest.raises(WireError, match=f"^cannot decode {re.escape(name_of(target))}: ."):
            decode(data, target)


def test_nesting_without_end_is_a_wire_error() -> None:
    deep = b"\x81\xaaextra_args\x81\xa1a" + b"\x91" * 200_000 + b"\xc0"
    with pytest.raises(WireError, match=r"^cannot decode SamplingParams: .*recursion"):
        decode(deep, SamplingParams)
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(WireError, match=r"^cannot encode SamplingParams: .*recursion"):
        encode(SamplingParams(extra_args={"loop": loop}))


def test_a_token_array_of_token_ids_too_large_for_the_wire_is_named() -> None:
    delta = SequenceDataDelta([2**64], 0.0, 0, SequenceStage.DECODE)
    with pytest.raises(WireError, match=r"SequenceDataDelta: new_output_token_ids\[0\]: "):
        encode(delta)


def test_text_that_is_no_unicode_is_named() -> None:
    delta = SequenceGroupMetadataDelta({}, "\ud800", {}, False)
    with pytest.raises(WireError, match="SequenceGroupMetadataDelta: request_id: "):
        encode(delta)


def test_decoding_into_what_is_no_type_is_the_callers_error() -> None:
    not_a_type: Any = 5
    with pytest.raises(TypeError):
        decode(b"\xc0", not_a_type)


def test_bytearrays_and_memoryviews_decode_as_well() -> None:
    data = encode(SequenceGroupState(3, 1))
    buffers: list[Any] = [data, bytearray(data), memoryview(data)]
    for buffer in buffers:
        assert decode(buffer, SequenceGroupState) == SequenceGroupState(3, 1)


EXTREMES = [0, 1, -1, 255, 2**31, -(2**31), 2**63 - 1, -(2**63)]


def test_token_ids_are_little_endian_signed_8_byte_integers() -> None:
    data = SequenceData.from_seqs(EXTREMES)
    raw = msgspec.msgpack.decode(encode(data))["_prompt_token_ids"]
    assert raw == b"".join(i.to_bytes(8, "little", signed=True) for i in EXTREMES)
    assert decode(encode(data), SequenceData).prompt_token_ids == tuple(EXTREMES)


def test_token_ids_where_a_c_long_is_not_the_wires_form(monkeypatch: pytest.MonkeyPatch) -> None:
    data = SequenceData.from_seqs(EXTREMES)
    encoded = encode(data)
    monkeypatch.setattr(codec, "_ARRAY_IS_WIRE_FORM", False)
    assert encode(data) == encoded
    assert decode(encoded, SequenceData).prompt_token_ids == tuple(EXTREMES)


def test_token_ids_on_a_machine_of_the_other_byte_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_ARRAY_IS_WIRE_FORM", False)
    monkeypatch.setattr(sys, "byteorder", {"little": "big", "big": "little"}[sys.byteorder])
    # This machine's arrays are in its own order still, so what comes out is the reverse of it.
    assert encode(array("l", [1])) == b"\xc4\x08" + (1).to_bytes(8, sys.byteorder)
    data = SequenceData.from_seqs(EXTREMES)
    assert decode(encode(data), SequenceData).prompt_token_ids == tuple(EXTREMES)


def test_one_decoder_is_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that make decoders of the same structs crash: the viewer of two engines did."""
    made: list[bool] = []

    def make(*args: Any, **options: Any) -> object:
        made.append(codec._building.locked())
        return msgspec.msgpack.Decoder(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(codec, "msgspec", SimpleNamespace(msgpack=SimpleNamespace(Decoder=make)))
        codec._decoder(tuple[int, str, float])
    assert made == [True]
