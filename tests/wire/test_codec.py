"""The codec's own promises: what an error says, and bytes that do not depend on the machine."""

import re
import sys
from array import array
from typing import Any

import msgspec
import pytest

from seqtop.sequence import (
    ExecuteModelRequest,
    LoRARequest,
    PlaceholderRange,
    SamplingParams,
    SequenceData,
    SequenceDataDelta,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceGroupState,
    SequenceStage,
)
from seqtop.wire import WireError, codec, decode, encode
from seqtop.wire.error_location import name_of


def request() -> ExecuteModelRequest:
    full = SequenceGroupMetadata(
        "full",
        True,
        {0: SequenceData.from_seqs([1, 2])},
        SamplingParams(stop=["x"], logit_bias={7: 0.5}, seed=3),
        {0: [4]},
        lora_request=LoRARequest("lora", 1, "/path"),
        multi_modal_placeholders={"image": [PlaceholderRange(0, 1)]},
    )
    delta = SequenceGroupMetadataDelta(
        {0: SequenceDataDelta([3], -0.5, 2, SequenceStage.DECODE)}, "delta", {0: [4]}, False
    )
    return ExecuteModelRequest([full, delta], blocks_to_copy=[(1, 2)])


FULL, DELTA = [0, 0], [0, 1]


FIRST, SECOND = "seq_group_metadata_list[0]", "seq_group_metadata_list[1]"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ([*FULL, 1], 5, f"{FIRST}.request_id: Expected `str`, got `int`"),
        ([*DELTA, 2], 5, f"{SECOND}.request_id: Expected `str`, got `int`"),
        ([*FULL, 0], "New", f"{FIRST}[0]: Invalid value 'New'"),
        (
            [*FULL, 3, 0, "_stage"],
            9,
            f"{FIRST}.seq_data[...]._stage: Invalid enum value 9",
        ),
        (
            [*FULL, 3, 0, "_prompt_token_ids"],
            b"1",
            f"{FIRST}.seq_data[...]._prompt_token_ids: 1 bytes of token ids are no multiple of 8",
        ),
        (
            [*DELTA, 1, 0, 2],
            0.5,
            f"{SECOND}.seq_data_delta[...].new_num_computed_tokens: Expected `int`, got `float`",
        ),
        (
            [*FULL, 4, "temperature"],
            -1,
            f"{FIRST}.sampling_params: temperature must be at least 0, got -1.0",
        ),
        (
            [*FULL, 4, "stop"],
            [5],
            f"{FIRST}.sampling_params.stop[0]: Expected `str`, got `int`",
        ),
        (
            [*FULL, 4, "logit_bias"],
            {"a": 1.0},
            f"a key of {FIRST}.sampling_params.logit_bias: Expected `int`, got `str`",
        ),
        (
            [*FULL, 8, 2],
            "",
            f"{FIRST}.lora_request: a LoRA request needs a lora_path",
        ),
        (
            [*FULL, 13, "image", 0, "is_embed"],
            5,
            f"{FIRST}.multi_modal_placeholders[...][0].is_embed: expected Tensor, got int",
        ),
        ([3, 0], [1, "b"], "blocks_to_copy[0][1]: Expected `int`, got `str`"),
        ([12], "f", "async_callback: expected Callable, got str"),
        ([11], [1], "last_sampled_token_ids: expected Tensor, got list"),
        ([], 5, "Expected `array`, got `int`"),
    ],
)
def test_a_decoding_error_names_type_and_field(path: list[Any], value: Any, message: str) -> None:
    wrong = raw = msgspec.msgpack.decode(encode(request()), strict=False)
    *steps, last = path or [None]
    if path:
        for step in steps:
            raw = raw[step]
        raw[last] = value
    else:
        wrong = value
    with pytest.raises(WireError) as caught:
        decode(msgspec.msgpack.encode(wrong), ExecuteModelRequest)
    assert str(caught.value) == f"cannot decode ExecuteModelRequest: {message}"


class Outer(msgspec.Struct):
    first: int
    pair: tuple[int, SequenceDataDelta]


def test_fields_are_named_through_maps_and_tuples() -> None:
    for pair, message in (
        ([1, [[], 0.0, "x", 1]], r"pair\[1\]\.new_num_computed_tokens: Expected `int`"),
        ([1, [["x"], 0.0, 0, 1]], r"pair\[1\]\.new_output_token_ids\[0\]: Expected `int`"),
        (["x", [[], 0.0, 0, 1]], r"pair\[0\]: Expected `int`"),
    ):
        with pytest.raises(WireError, match=f"^cannot decode Outer: {message}"):
            decode(msgspec.msgpack.encode({"first": 1, "pair": pair}), Outer)


def test_a_wrong_tag_is_named() -> None:
    delta = encode(request().seq_group_metadata_list[1])
    with pytest.raises(WireError, match="SequenceGroupMetadata: tag: Invalid value"):
        decode(delta, SequenceGroupMetadata)


def test_a_union_is_named_by_its_members() -> None:
    either: Any = SequenceGroupMetadata | SequenceGroupMetadataDelta
    expected = "^cannot decode SequenceGroupMetadata | SequenceGroupMetadataDelta: "
    with pytest.raises(WireError, match=expected.replace("|", r"\|")):
        decode(b"\x90", either)


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
    for buffer in (data, bytearray(data), memoryview(data)):
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
