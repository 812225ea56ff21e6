"""Every encoding that vLLM's own classes gave: same bytes from the same fields, and back."""

import math
import operator
from typing import Any

import pytest
import torch

import seqtop.sequence
from seqtop.sequence import MultiModalKwargs
from seqtop.wire import WireError, decode, encode
from tests.support.golden import build, plain, vectors


def type_of(vector: dict[str, Any]) -> Any:
    return getattr(seqtop.sequence, vector["type"])


def by_name(vector: dict[str, Any]) -> str:
    return vector["name"]


LOST = {
    "sgm_mm_data_lost": ("multi_modal_data",),
    "emr_last_sampled_tensor_lost": ("last_sampled_token_ids",),
    "emr_async_callback_lost": ("async_callback",),
    "pooling_output_tensor_lost": ("outputs", 0, "data"),
}


def test_there_are_as_many_vectors_as_were_recorded() -> None:
    assert len(vectors()) == 53
    assert {vector["name"] for vector in vectors() if "decoded" in vector} == set(LOST)


@pytest.mark.parametrize("vector", vectors(), ids=by_name)
def test_fields_encode_to_vllms_bytes(vector: dict[str, Any]) -> None:
    # Where vLLM loses a value it sends nil, which is what None encodes to.
    obj = build(vector["type"], vector.get("decoded", vector["expected"]))
    assert encode(obj).hex() == vector["hex"]


@pytest.mark.parametrize("vector", vectors(), ids=by_name)
def test_vllms_bytes_decode_to_the_fields(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    obj = decode(data, type_of(vector))
    assert type(obj) is type_of(vector)
    assert plain(obj) == vector.get("decoded", vector["expected"])
    assert encode(obj) == data


@pytest.mark.parametrize("vector", vectors(), ids=by_name)
def test_any_buffer_decodes_alike(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    assert encode(decode(memoryview(data), type_of(vector))) == data


@pytest.mark.parametrize("name", LOST)
def test_values_that_vllm_loses_arrive_or_are_refused(name: str) -> None:
    vector = next(vector for vector in vectors() if vector["name"] == name)
    obj = build(vector["type"], vector["decoded"])
    *steps, last = LOST[name]
    assert isinstance(last, str)
    owner = obj
    for step in steps:
        owner = getattr(owner, step) if isinstance(step, str) else owner[step]
    original: Any = vector["expected"]
    for step in LOST[name]:
        original = original[step]

    if "$tensor" in original:
        shape = original["$tensor"]
        value: Any = torch.arange(float(math.prod(shape))).reshape(shape)
        setattr(owner, last, value)
        there = decode(encode(obj), type_of(vector))
        for step in LOST[name]:
            there = getattr(there, step) if isinstance(step, str) else there[step]
        assert torch.equal(there, value)
    elif original["$repr"] == "MultiModalKwargs":
        setattr(owner, last, MultiModalKwargs(pixel_values=torch.ones(2, 2)))
        there = decode(encode(obj), type_of(vector)).multi_modal_data
        assert isinstance(there, MultiModalKwargs)
        assert list(there) == ["pixel_values"]
        assert torch.equal(there["pixel_values"], torch.ones(2, 2))
    else:
        setattr(owner, last, operator.add)
        with pytest.raises(WireError, match=r"async_callback: .*builtin_function_or_method"):
            encode(obj)
