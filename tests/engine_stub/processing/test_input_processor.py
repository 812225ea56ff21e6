"""Requests are tokenized and validated."""

import pytest

from seqtop.sequence import (
    SamplingParams,
)
from tests.support.running import greedy


def test_bad_requests_are_refused_and_leave_nothing_behind(make_engine) -> None:
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


def test_text_prompts_are_encoded(make_engine) -> None:
    engine = make_engine()
    (group,) = engine.add_request("r", "Hi", greedy(1))
    assert group.prompt == "Hi"
    assert group.prompt_token_ids == engine.tokenizer.encode("Hi")
    (group,) = engine.add_request(
        "s", "Hello", SamplingParams(truncate_prompt_tokens=2, temperature=0)
    )
    assert group.prompt_token_ids == engine.tokenizer.encode("lo")


def test_the_callers_parameters_are_left_alone(make_engine) -> None:
    params = SamplingParams(stop_token_ids=[5])
    before = params.clone()
    make_engine().generate([[1]], params)
    assert params == before
