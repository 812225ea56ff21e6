"""Sampling, guided decoding and pooling parameters."""

import math
import operator
from typing import Any

import pytest

from seqtop.sequence import (
    GuidedDecodingParams,
    PoolingParams,
    RequestOutputKind,
    SamplingParams,
    SamplingType,
    SequenceError,
)
from seqtop.wire import decode, encode


def test_lists_are_lists_from_the_start() -> None:
    params = SamplingParams()
    assert (params.stop, params.stop_token_ids, params.bad_words) == ([], [], [])
    assert SamplingParams(stop="end").stop == ["end"]
    assert encode(params) == bytes.fromhex(
        "83a473746f7090ae73746f705f746f6b656e5f69647390a96261645f776f72647390"
    ).replace(b"\x83", b"\xde\x00\x03", 1)


def test_stop_strings_hold_text_back() -> None:
    assert SamplingParams(stop=["a", "three"]).output_text_buffer_length == 4
    kept = SamplingParams(stop=["three"], include_stop_str_in_output=True)
    assert kept.output_text_buffer_length == 0


def test_stop_tokens_gather() -> None:
    params = SamplingParams(stop_token_ids=[3, 4])
    assert params.all_stop_token_ids == {3, 4}
    assert SamplingParams().all_stop_token_ids is not SamplingParams().all_stop_token_ids


@pytest.mark.parametrize(
    ("options", "config", "eos", "stop", "all_stop"),
    [
        ({}, {}, None, [], set()),
        ({}, {}, 2, [], {2}),
        ({}, {"eos_token_id": 2}, 2, [], {2}),
        ({}, {"eos_token_id": [2, 5]}, 2, [5], {2, 5}),
        ({"stop_token_ids": [9]}, {"eos_token_id": 5}, 2, [5, 9], {2, 5, 9}),
        ({"ignore_eos": True}, {"eos_token_id": [2, 5]}, 2, [], {2, 5}),
        ({}, {"eos_token_id": 5}, None, [5], {5}),
    ],
)
def test_end_of_sequence_tokens(
    options: Any, config: Any, eos: int | None, stop: list[int], all_stop: set[int]
) -> None:
    params = SamplingParams(**options)
    params.update_from_generation_config(config, eos)
    assert sorted(params.stop_token_ids) == stop
    assert params.all_stop_token_ids == all_stop


def test_best_of_generates_more_than_it_returns() -> None:
    params = SamplingParams(n=2, best_of=5)
    assert (params.n, params._real_n, params.best_of) == (5, 2, 5)
    there = decode(encode(params), SamplingParams)
    assert (there.n, there._real_n) == (5, 2)
    clone = params.clone()
    assert (clone.n, clone._real_n) == (5, 2)


def test_temperature() -> None:
    greedy = SamplingParams(temperature=0.0, top_p=0.5, top_k=5, min_p=0.1)
    assert (greedy.top_p, greedy.top_k, greedy.min_p) == (1.0, 0, 0.0)
    assert greedy.sampling_type is SamplingType.GREEDY
    assert SamplingParams(temperature=1e-6).temperature == 0.01
    random = SamplingParams(temperature=0.5, top_p=0.5, top_k=5, min_p=0.1)
    assert (random.top_p, random.top_k, random.min_p) == (0.5, 5, 0.1)
    assert random.sampling_type is SamplingType.RANDOM
    assert SamplingParams(seed=0).sampling_type is SamplingType.RANDOM_SEED


def test_numbers_that_mean_something_else() -> None:
    assert SamplingParams(seed=-1).seed is None
    for name in ("logprobs", "prompt_logprobs"):
        given: dict[str, Any] = {name: True}
        number = getattr(SamplingParams(**given), name)
        assert (type(number), number) == (int, 1)
    assert SamplingParams(logprobs=0).logprobs == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"n": 0}, "n must be"),
        ({"n": 1.5}, "n must be an integer"),
        ({"n": 3, "best_of": 2}, "best_of must be at least n=3, got 2"),
        ({"best_of": 0}, "best_of must be at least 1"),
        ({"n": 1, "best_of": 2, "output_kind": RequestOutputKind.DELTA}, "best_of must be equal"),
        ({"presence_penalty": 2.1}, "presence_penalty must be from -2 to 2, got 2.1"),
        ({"frequency_penalty": -2.1}, "frequency_penalty must be"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be greater than 0"),
        ({"temperature": -0.1}, "temperature must be"),
        ({"top_p": 0.0}, "top_p must be"),
        ({"top_p": 1.1}, "top_p must be"),
        ({"top_k": -2}, "top_k must be"),
        ({"min_p": 1.1}, "min_p must be"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"min_tokens": -1}, "min_tokens must be at least 0"),
        ({"min_tokens": 17}, "min_tokens must be at most max_tokens=16"),
        ({"logprobs": -1}, "logprobs must be"),
        ({"prompt_logprobs": -1}, "prompt_logprobs must be"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be"),
        ({"stop": ["a", ""]}, "stop must be without empty strings"),
        ({"stop": ""}, "stop must be without empty strings"),
        ({"stop": ["a"], "detokenize": False}, "stop must be empty unless detokenize is set"),
        ({"stop_token_ids": [1, "2"]}, "stop_token_ids must be integers"),
        ({"n": 2, "temperature": 0.0}, "n must be 1, got 2"),
    ],
    ids=str,
)
def test_values_out_of_range(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SamplingParams(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": -1},
        {"max_tokens": None, "min_tokens": 100},
        {"max_tokens": 5, "min_tokens": 5},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "min_p": 1.0, "top_p": 1.0},
        {"best_of": 2, "n": 2, "output_kind": RequestOutputKind.DELTA},
    ],
    ids=str,
)
def test_values_at_the_edge(options: dict[str, Any]) -> None:
    there = decode(encode(SamplingParams(**options)), SamplingParams)
    assert there == SamplingParams(**options)


def test_nan_parameters_decode_as_in_vllm() -> None:
    params = SamplingParams(temperature=math.nan, repetition_penalty=math.nan)
    assert math.isnan(decode(encode(params), SamplingParams).temperature)


def test_a_clone_is_deep_except_for_processors() -> None:
    class Own:
        def clone(self) -> str:
            return "cloned"

    params = SamplingParams(
        stop=["a"], logits_processors=[operator.add, Own()], extra_args={"k": []}
    )
    clone = params.clone()
    clone.stop.append("b")
    clone.extra_args["k"].append(1)
    clone.all_stop_token_ids.add(5)
    assert (params.stop, params.extra_args, params.all_stop_token_ids) == (["a"], {"k": []}, set())
    assert clone.logits_processors == [operator.add, "cloned"]
    assert clone.bad_words_token_ids is None


def test_one_constraint_at_a_time() -> None:
    guided = SamplingParams(guided_decoding=GuidedDecodingParams(json={"type": "object"}))
    there = decode(encode(guided), SamplingParams)
    assert there.guided_decoding == GuidedDecodingParams(json={"type": "object"})
    with pytest.raises(ValueError, match="one constraint, not regex, choice"):
        GuidedDecodingParams(regex="a", choice=["b"])
    assert GuidedDecodingParams(json_object=False).json_object is False


def test_pooling() -> None:
    params = PoolingParams(dimensions=3, use_cross_encoder=True, additional_data=[1])
    assert params.clone() == params
    assert params.clone() is not params
    with pytest.raises(SequenceError, match="at the end, not DELTA"):
        PoolingParams(output_kind=RequestOutputKind.DELTA)
