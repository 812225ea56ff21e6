"""Decoding accepts and refuses the same as vLLM's codec, and encoding loses nothing."""

import operator
from array import array
from typing import Any

import numpy as np
import pytest
import torch

import seqtop.sequence
from seqtop.sequence import (
    IntermediateTensors,
    SamplingParams,
    Sequence,
    SequenceGroup,
    SequenceStage,
    SequenceStatus,
    token_inputs,
)
from seqtop.wire import WireError, decode, encode
from tests.support.golden import tolerance

DECODING = [case for case in tolerance() if case["type"] != "encode"]


def by_name(case: dict[str, Any]) -> str:
    return case["name"]


@pytest.mark.parametrize("case", [c for c in DECODING if c["ok"]], ids=by_name)
def test_accepts_what_vllm_accepts(case: dict[str, Any]) -> None:
    obj = decode(bytes.fromhex(case["hex"]), getattr(seqtop.sequence, case["type"]))
    assert repr(obj) == case["result"]


@pytest.mark.parametrize("case", [c for c in DECODING if not c["ok"]], ids=by_name)
def test_refuses_what_vllm_refuses(case: dict[str, Any]) -> None:
    with pytest.raises(WireError, match=f"^cannot decode {case['type']}: ."):
        decode(bytes.fromhex(case["hex"]), getattr(seqtop.sequence, case["type"]))


SEQUENCE = Sequence(0, token_inputs([1]), 16)

STOPPED_BY_THREE = (
    "de0004a473746f7090ae73746f705f746f6b656e5f69647393cd012c024d"
    "b35f616c6c5f73746f705f746f6b656e5f6964739302cd012c4da96261645f776f72647390"
)

# Name in the golden data -> (value, the bytes or the refusal that we answer with). Where vLLM
# answers differently, it loses the value: it sends nil.
ENCODING: dict[str, tuple[Any, str | None]] = {
    "enc_numpy_int_block": ({0: [np.int64(5)]}, "81009105"),
    "enc_numpy_array": (np.zeros(3), None),
    "enc_array_typecode_i": (array("i", [1]), None),
    "enc_array_typecode_q": (array("q", [1]), None),
    "enc_no_hook": (array("l", [1]), "c4080100000000000000"),
    "enc_cuda_like_object": (object(), None),
    "enc_logits_processors": (SamplingParams(logits_processors=[operator.add]), None),
    "enc_all_stop_set_order": (
        SamplingParams(stop_token_ids=[300, 2, 77]),
        STOPPED_BY_THREE,
    ),
    "enc_SequenceStatus": (SequenceStatus.FINISHED_ABORTED, "05"),
    "enc_SequenceStage": (SequenceStage.DECODE, "02"),
    "enc_IntermediateTensors": (IntermediateTensors({"a": None}), "81a774656e736f727381a161c0"),
    "enc_Sequence_is_nil": (SEQUENCE, None),
    "enc_SequenceGroup_is_nil": (SequenceGroup("r", [SEQUENCE], 0.0), None),
}
LOST_BY_VLLM = {
    "enc_numpy_int_block",
    "enc_numpy_array",
    "enc_cuda_like_object",
    "enc_logits_processors",
    "enc_Sequence_is_nil",
    "enc_SequenceGroup_is_nil",
}


def test_every_encoding_case_is_answered() -> None:
    assert set(ENCODING) == {case["name"] for case in tolerance() if case["type"] == "encode"}


@pytest.mark.parametrize("name", ENCODING)
def test_encodes_or_refuses_but_never_loses(name: str) -> None:
    value, encoded = ENCODING[name]
    if encoded is None:
        with pytest.raises(WireError, match=f"^cannot encode {type(value).__name__}: ."):
            encode(value)
    else:
        assert encode(value).hex() == encoded


KEPT_BY_VLLM = [c for c in tolerance() if c["name"] in set(ENCODING) - LOST_BY_VLLM and c["ok"]]


@pytest.mark.parametrize("case", KEPT_BY_VLLM, ids=by_name)
def test_encodings_agree_where_vllm_loses_nothing(case: dict[str, Any]) -> None:
    assert encode(ENCODING[case["name"]][0]).hex() == case["result"]


def test_a_tensor_where_vllm_sends_nil_is_sent() -> None:
    there = decode(encode(IntermediateTensors({"a": torch.ones(2)})), IntermediateTensors)
    assert there == IntermediateTensors({"a": torch.ones(2)})


def test_foreign_floats_are_floats() -> None:
    assert encode([np.float64(1.5), np.float32(0.25)]) == encode([1.5, 0.25])


def test_unknown_objects_are_named_with_their_place() -> None:
    request = seqtop.sequence.ExecuteModelRequest([], async_callback=operator.add)
    with pytest.raises(
        WireError,
        match=r"^cannot encode ExecuteModelRequest: async_callback: "
        r"builtins.builtin_function_or_method has no form on the wire$",
    ):
        encode(request)
    params = SamplingParams(extra_args={"a": [1, {"b": {object()}}]})
    with pytest.raises(WireError, match=r"SamplingParams: extra_args\['a'\]\[1\]\['b'\]\[0\]: "):
        encode(params)
