"""Requests are tokenized and validated."""

import math
from typing import Any

import pytest

from seqtop.sequence import (
    SamplingParams,
    SequenceStatus,
)
from seqtop.wire import codec
from seqtop.wire.messages import Submit
from tests.support.running import MakeEngine, greedy


def test_bad_requests_are_refused_and_leave_nothing_behind(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.add_request("r", [1], greedy(2))
    for prompt, params, reason in (
        ([], greedy(2), "no tokens"),
        ([257], greedy(2), "outside the vocabulary"),
        ([1], SamplingParams(allowed_token_ids=[257]), "outside the vocabulary"),
        ([1], SamplingParams(allowed_token_ids=[]), "no token to sample"),
        ([1], SamplingParams(allowed_token_ids=[0], min_tokens=1), "no token to sample"),
        ([1], SamplingParams(logit_bias={-1: 1.0}), "outside the vocabulary"),
        ([1], SamplingParams(logits_processors=[len]), "logits_processors"),
        ([1], SamplingParams(bad_words=["x"]), "bad_words"),
    ):
        with pytest.raises(ValueError, match=reason):
            engine.add_request("bad", prompt, params)
    with pytest.raises(ValueError, match="in use"):
        engine.add_request("r", [1], greedy(2))
    assert list(engine.seq_groups) == ["r"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 1.5),
        ("min_tokens", 1.0),
        ("top_k", 2.5),
        ("logprobs", 1.5),
        ("seed", 0.5),
    ],
)
def test_counts_are_integers(make_engine: MakeEngine, name: str, value: float) -> None:
    engine = make_engine(num_scheduler_steps=4)
    given: dict[str, Any] = {"max_tokens": 4, name: value}
    with pytest.raises(ValueError, match=f"{name} must be an integer"):
        engine.add_request("bad", [1], SamplingParams(**given))
    priority: Any = math.nan
    with pytest.raises(ValueError, match="priority must be an integer"):
        engine.add_request("bad", [1], greedy(2), priority=priority)
    assert not engine.seq_groups


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2**31),
        ("best_of", 2**31),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("repetition_penalty", math.nan),
        ("repetition_penalty", math.inf),
        ("top_k", 2**63 - 1),
        ("seed", 2**64 - 1),
        ("max_tokens", 2**63 - 1),
        ("min_tokens", 2**31),
        ("logprobs", 2**31),
        ("prompt_logprobs", 2**31),
        ("truncate_prompt_tokens", 2**63 - 1),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: -1e30}),
        ("stop", ["x"] * 1_000),
        ("stop", ["x" * 100_000]),
        ("extra_args", {"a": [[]]}),
    ],
)
def test_parameters_from_viewers_have_limits(
    make_engine: MakeEngine, name: str, value: object
) -> None:
    """A viewer's command decodes with such values; the engine refuses them as the HTTP API does."""
    engine = make_engine()
    params = SamplingParams(max_tokens=None) if name == "min_tokens" else SamplingParams()
    setattr(params, name, value)
    command = codec.encode(Submit(prompt="Hi", sampling_params=params))
    decoded = codec.decode(command, Submit).sampling_params
    with pytest.raises(ValueError, match="n must" if name == "best_of" else name):
        engine.add_request("r", [1], decoded)
    assert not engine.seq_groups


def test_text_prompts_are_encoded(make_engine: MakeEngine) -> None:
    engine = make_engine()
    (group,) = engine.add_request("r", "Hi", greedy(1))
    assert group.prompt == "Hi"
    assert group.prompt_token_ids == engine.tokenizer.encode("Hi")
    (group,) = engine.add_request(
        "s", "Hello", SamplingParams(truncate_prompt_tokens=2, temperature=0)
    )
    assert group.prompt_token_ids == engine.tokenizer.encode("lo")


def test_the_callers_parameters_are_left_alone(make_engine: MakeEngine) -> None:
    params = SamplingParams(stop_token_ids=[5])
    before = params.clone()
    make_engine().generate([[1]], params)
    assert params == before


def test_a_text_that_is_too_long_in_any_case_is_not_encoded(make_engine: MakeEngine) -> None:
    engine = make_engine()
    tokenizer = engine.tokenizer
    assert tokenizer.max_token_bytes == len(b"<eos>")
    text = "x" * (5 * engine.max_model_len + 1)
    with pytest.raises(ValueError, match=r"1,281 characters.* at most 256 tokens"):
        engine.add_request("long", text, SamplingParams())
    engine.add_request("cut", text, SamplingParams(truncate_prompt_tokens=3))
    (group,) = engine.add_request("ignored", text[:-1], SamplingParams())
    assert group.first_seq.status is SequenceStatus.FINISHED_IGNORED
