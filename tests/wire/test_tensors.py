"""Tensors on the wire: every element type and shape arrives; nothing malformed does."""

import sys
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqtop.sequence import (
    CompletionSequenceGroupOutput,
    ExecuteModelRequest,
    HiddenStates,
    IntermediateTensors,
    Logprob,
    MultiModalKwargs,
    PlaceholderRange,
    PoolerOutput,
    PoolingParams,
    PoolingSequenceGroupOutput,
    SequenceData,
    SequenceGroupMetadata,
    SequenceOutput,
)
from seqtop.wire import WireError, decode, encode

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def through(tensor: torch.Tensor) -> torch.Tensor:
    there = decode(encode(IntermediateTensors({"x": tensor})), IntermediateTensors)
    return there["x"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (1, 2, 3, 4)], ids=str)
def test_round_trip(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    numbers = torch.arange(max(1, torch.Size(shape).numel())) - 2
    tensor = numbers[: torch.Size(shape).numel()].reshape(shape).to(dtype)
    there = through(tensor)
    assert there.dtype == dtype
    assert there.shape == tensor.shape
    # By bytes, since equality is not defined for every element type, nor for NaN.
    assert encode(there) == encode(tensor)
    assert there.double().equal(tensor.double())


def test_elements_travel_in_order_little_endian() -> None:
    ext = msgspec.msgpack.decode(encode(torch.tensor([[1, 2], [3, 4]], dtype=torch.int16)))
    assert ext.code == ord("T")
    name, shape, data = msgspec.msgpack.decode(ext.data)
    assert (name, shape, data.hex()) == ("int16", [2, 2], "0100020003000400")


def test_views_arrive_as_what_they_show() -> None:
    base = torch.arange(24.0).reshape(4, 6)
    for view in (base.t(), base[1:, ::2], base[2], base[:, :1].expand(4, 5), base[3, 5]):
        assert through(view).equal(view)


def test_a_tensor_that_needs_a_gradient_arrives_without() -> None:
    tensor = torch.ones(2, requires_grad=True)
    assert through(tensor).equal(tensor)
    assert not through(tensor).requires_grad


def test_a_received_tensor_can_be_written_to() -> None:
    there = through(torch.zeros(2))
    there += 1
    assert there.tolist() == [1, 1]


def test_every_field_that_can_hold_a_tensor() -> None:
    t = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    group = SequenceGroupMetadata(
        "r",
        True,
        {0: SequenceData.from_seqs([0, 0], prompt_embeds=t)},
        None,
        {0: [1]},
        pooling_params=PoolingParams(additional_data={"t": t}),
        multi_modal_data=MultiModalKwargs(pixels=[t, {"deep": t}]),
        multi_modal_placeholders={"image": [PlaceholderRange(0, 2, torch.tensor([True, False]))]},
    )
    group.seq_data[0].append_token_id(5, -0.5, torch.tensor([5.0, 6.0]))
    request = ExecuteModelRequest(
        [group],
        previous_hidden_states=HiddenStates(t, None, t + 1),
        last_sampled_token_ids=torch.tensor([[7]]),
    )
    data = encode(request)
    there = decode(data, ExecuteModelRequest)
    assert encode(there) == data
    assert there.last_sampled_token_ids.equal(torch.tensor([[7]]))
    assert there.previous_hidden_states.hidden_states.equal(t)
    assert there.previous_hidden_states.second_last_token_hidden_states.equal(t + 1)
    group_there = there.seq_group_metadata_list[0]
    assert isinstance(group_there, SequenceGroupMetadata)
    assert group_there.seq_data[0].prompt_embeds.equal(t)
    assert group_there.seq_data[0].output_embeds.equal(torch.tensor([[5.0, 6.0]]))
    assert group_there.seq_data[0].get_token_embeddings().shape == (3, 2)
    assert group_there.multi_modal_data["pixels"][1]["deep"].equal(t)
    assert group_there.multi_modal_placeholders["image"][0].get_num_embeds() == 1
    assert group_there.pooling_params.additional_data["t"].equal(t)

    pooled = decode(encode(PoolerOutput([PoolingSequenceGroupOutput(t)])), PoolerOutput)
    assert pooled[0].data.equal(t)
    sample = SequenceOutput(0, 1, {1: Logprob(-0.5)}, t[0])
    output = CompletionSequenceGroupOutput([sample], None)
    there_output = decode(encode(output), CompletionSequenceGroupOutput)
    assert there_output.samples[0].output_embed.equal(t[0])


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.zeros(2, dtype=torch.complex64), "a tensor of complex64 elements"),
        (torch.eye(2).to_sparse(), "without dense elements"),
        (torch.empty(2, device="meta"), "without dense elements"),
    ],
    ids=["complex", "sparse", "meta"],
)
def test_a_tensor_without_a_form_is_refused_with_its_place(
    tensor: torch.Tensor, reason: str
) -> None:
    with pytest.raises(WireError, match=rf"last_sampled_token_ids: .*{reason}"):
        encode(ExecuteModelRequest([], last_sampled_token_ids=tensor))


def packed(*parts: Any) -> bytes:
    payload = msgspec.msgpack.encode(parts)
    return msgspec.msgpack.encode([msgspec.msgpack.Ext(ord("T"), payload)])


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (("int64", [1], bytes(7)), "7 bytes do not fill a int64 tensor of shape"),
        (("int64", [2], bytes(8)), "8 bytes do not fill"),
        (("int64", [], bytes(0)), "0 bytes do not fill"),
        (("int64", [2**62, 4], bytes(0)), "0 bytes do not fill"),
        (("int8", [-1, -1], bytes(1)), "Expected `int` >= 0"),
        (("int8", [1] * 65, bytes(1)), "length <= 64"),
        (("int8", [0, 2**63], bytes(0)), "."),
        (("Tensor", [1], bytes(8)), "unknown tensor element type 'Tensor'"),
        (("complex64", [1], bytes(8)), "unknown tensor element type 'complex64'"),
        (("__class__", [1], bytes(8)), "unknown tensor element type"),
        (("bool", [2], b"\x01\x02"), "bytes other than 0 and 1"),
        ((1, [1], bytes(8)), "Expected `str`"),
        (("int8", 1, bytes(1)), "Expected `array`"),
        (("int8", [1]), "length 3"),
        (("int8", [1], "x"), "Expected `bytes`"),
        ((), "length 3"),
    ],
    ids=repr,
)
def test_a_malformed_tensor_is_refused(parts: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(WireError, match=f"^cannot decode PoolingSequenceGroupOutput: .*{reason}"):
        decode(packed(*parts), PoolingSequenceGroupOutput)


@given(st.binary(max_size=64))
def test_random_payloads_are_refused_or_tensors(payload: bytes) -> None:
    data = msgspec.msgpack.encode([msgspec.msgpack.Ext(ord("T"), payload)])
    try:
        there = decode(data, PoolingSequenceGroupOutput)
    except WireError:
        return
    assert isinstance(there.data, torch.Tensor)


def test_another_extension_is_refused() -> None:
    data = msgspec.msgpack.encode([msgspec.msgpack.Ext(5, b"")])
    with pytest.raises(WireError, match="unknown extension type 5"):
        decode(data, PoolingSequenceGroupOutput)


def test_a_tensor_that_arrives_without_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode(IntermediateTensors({"x": torch.ones(1)}))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(WireError, match="a tensor arrived, and torch is not installed"):
        decode(data, IntermediateTensors)


def test_the_other_byte_order_turns_elements_around(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.tensor([[1.5, -2.5]], dtype=torch.float32)
    straight = encode(tensor)
    monkeypatch.setattr(sys, "byteorder", {"little": "big", "big": "little"}[sys.byteorder])
    assert encode(tensor) != straight
    assert through(tensor).equal(tensor)
