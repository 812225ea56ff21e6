"""Errors name the type and the field."""

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
    SequenceStage,
)
from seqtop.wire import WireError, decode, encode


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


class Outer(msgspec.Struct):
    first: int
    pair: tuple[int, SequenceDataDelta]


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
