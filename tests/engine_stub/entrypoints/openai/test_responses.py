"""Responses, in one piece and streamed."""

from typing import Any

import pytest

from tests.support.http_engine import CHAT, GREEDY, MODEL, SEEDED, Served
from tests.support.waiting import wait_until


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
        assert "".join(each.text for each in samples[choice.index]) == choice.text
        reasons = [each.finish_reason for each in samples[choice.index]]
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
    found = chat.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert "".join(each.token for each in found.content) == chat.choices[0].message.content
    for each in found.content:
        assert each.top_logprobs[0].token == each.token
        assert len(each.top_logprobs) == 3
        assert bytes(each.bytes or ()).decode() == each.token
