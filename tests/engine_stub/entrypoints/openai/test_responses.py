"""Responses, in one piece and streamed."""

import itertools
from typing import Any

import pytest

from engine_stub.config import DEFAULT_MODEL, EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.processing.tokenizer import Tokenizer
from seqtop.sequence import SamplingParams
from tests.support.http_engine import CHAT, GREEDY, MODEL, SEEDED, Served
from tests.support.waiting import wait_until

TOKENIZER = Tokenizer(DEFAULT_MODEL)


def by_sample(chunks: Any) -> dict[int, list[Any]]:
    samples: dict[int, list[Any]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            samples.setdefault(choice.index, []).append(choice)
    return samples


@pytest.mark.parametrize(
    "params", [GREEDY, SEEDED, {**SEEDED, "n": 3}], ids=["greedy", "seeded", "n"]
)
def test_completion_streams_what_it_answers_in_one(served: Served, params: dict[str, Any]) -> None:
    create = served.client.completions.create
    whole = create(prompt="Once upon a time", **params)
    samples = by_sample(create(prompt="Once upon a time", stream=True, **params))
    assert len(whole.choices) == len(samples) == params.get("n", 1)
    for choice in whole.choices:
        assert len(choice.text) > 20
        assert "".join(chunk.text for chunk in samples[choice.index]) == choice.text
        reasons = [chunk.finish_reason for chunk in samples[choice.index]]
        assert reasons == [None] * (len(reasons) - 1) + [choice.finish_reason]
        assert len(reasons) > 5
    assert len({choice.text for choice in whole.choices}) == len(whole.choices)


def test_chat_streams_what_it_answers_in_one(served: Served) -> None:
    create = served.client.chat.completions.create
    whole = create(messages=CHAT, **GREEDY)
    chunks = list(
        create(messages=CHAT, stream=True, stream_options={"include_usage": True}, **GREEDY)
    )
    assert whole.choices[0].message.role == chunks[0].choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(text) > 20
    assert chunks[-1].usage == whole.usage
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 24


def test_a_beam_search_answers_with_its_outputs_best_first(served: Served) -> None:
    wanted = {"use_beam_search": True, "ignore_eos": True, "length_penalty": 0.0}
    answer = served.client.completions.create(
        model=MODEL, prompt="Once upon a time", n=3, max_tokens=12, extra_body=wanted
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) == 3
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 36
    wait_until(lambda: (request := served.request(answer.id)) and request.finish_reason)
    with served.session.lock:
        state = served.session.state
        beams = [state.sequences[seq_id] for seq_id in state.requests[answer.id].seq_ids]
    assert [beam.text for beam in beams] == [choice.text for choice in answer.choices]
    likelihoods = [beam.cumulative_logprob for beam in beams]
    assert likelihoods == sorted(likelihoods, reverse=True)
    assert any(beam.parent_seq_id is not None for beam in beams)


def test_logprobs(served: Served) -> None:
    answer = served.client.completions.create(prompt="Once upon a time", logprobs=2, **GREEDY)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.top_logprobs is not None
    assert "".join(logprobs.tokens) == answer.choices[0].text
    for token, logprob, top, offset in zip(
        logprobs.tokens,
        logprobs.token_logprobs or (),
        logprobs.top_logprobs,
        logprobs.text_offset or (),
        strict=True,
    ):
        assert logprob == max(top.values()) <= 0  # greedy
        assert len(top) == 2
        assert answer.choices[0].text[offset:].startswith(token)

    chat = served.client.chat.completions.create(
        messages=CHAT, logprobs=True, top_logprobs=3, **GREEDY
    )
    logprobs = chat.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(token.token for token in logprobs.content) == chat.choices[0].message.content
    for token in logprobs.content:
        assert token.top_logprobs[0].token == token.token
        assert len(token.top_logprobs) == 3
        assert bytes(token.bytes or ()).decode() == token.token


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_prompts_are_scored_as_lm_eval_does(served: Served, max_tokens: int) -> None:
    """Lists of token ids in one request, echoed with their log probabilities."""
    texts = ["Once upon a time", "The lantern", "A fox by the river saw"]
    encoded = [TOKENIZER.encode(text) for text in texts]
    answer = served.client.completions.create(
        model=MODEL,
        prompt=encoded,
        max_tokens=max_tokens,
        temperature=0,
        logprobs=1,
        seed=1234,
        echo=True,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(map(len, encoded))
    assert answer.usage.completion_tokens == 3 * max_tokens
    engine = LLMEngine(EngineConfig(device="cpu", num_gpu_blocks=64))
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    for text, token_ids, choice, group in zip(
        texts, encoded, answer.choices, engine.generate(encoded, params), strict=True
    ):
        logprobs = choice.logprobs
        assert logprobs is not None
        assert choice.finish_reason == "length"
        assert len(logprobs.tokens) == len(token_ids) + max_tokens
        assert choice.text.startswith(text)
        assert "".join(logprobs.tokens) == choice.text
        assert (choice.text == text) == (max_tokens == 0)
        assert logprobs.token_logprobs[0] is logprobs.top_logprobs[0] is None
        for place, candidates in enumerate(group.prompt_logprobs[1:], start=1):
            logprob = logprobs.token_logprobs[place]
            assert logprob == pytest.approx(candidates[token_ids[place]].logprob, abs=1e-4)
            best = max(logprobs.top_logprobs[place].values())
            assert best == pytest.approx(
                max(candidate.logprob for candidate in candidates.values()), abs=1e-4
            )
        for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
            assert choice.text[offset:].startswith(token)


def test_several_prompts_and_samples_stream_what_they_answer_in_one(served: Served) -> None:
    create = served.client.completions.create
    prompts = ["Once upon a time", "The lantern"]
    given = {**SEEDED, "n": 2, "max_tokens": 8, "echo": True, "logprobs": 0}
    whole = create(prompt=prompts, **given)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    samples = by_sample(create(prompt=prompts, stream=True, **given))
    for choice in whole.choices:
        assert choice.text.startswith(prompts[choice.index // 2])
        assert "".join(chunk.text for chunk in samples[choice.index]) == choice.text
        for name in ("tokens", "text_offset"):
            streamed = [getattr(chunk.logprobs, name) for chunk in samples[choice.index]]
            assert [*itertools.chain(*streamed)] == getattr(choice.logprobs, name)
    one = create(prompt=prompts[1:], **given)
    assert [choice.text for choice in one.choices] == [choice.text for choice in whole.choices[2:]]
    wait_until(lambda: served.request(f"{whole.id}-1_parallel_sample_0"))
