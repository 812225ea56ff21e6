"""Requests that are refused, each with one sentence."""

import json
from typing import Any

import pytest

from tests.support.http_engine import CHAT, GREEDY, HTTP, Served


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ('{"prompt": ', 400, "truncated"),
        ("[]", 400, "expected an object, but got an array instead"),
        ('{"max_tokens": 3}', 400, "Missing required parameter: 'prompt'."),
        ('{"prompt": []}', 400, "no tokens"),
        ('{"prompt": ["one", 2]}', 400, "a list of one of these"),
        ('{"prompt": ["one", []]}', 400, "a list of one of these"),
        (json.dumps({"prompt": ["a"] * 2049}), 400, "2048 is the most"),
        (json.dumps({"prompt": ["a"] * 20, "n": 128}), 400, "more than 2048 samples"),
        (json.dumps({"prompt": ["a", "b", "never " * 1100]}), 400, "at most 1024"),
        ('{"prompt": ["a", [2048]]}', 400, "a list of one of these"),
        ('{"prompt": [[1], [2048]]}', 400, "outside the vocabulary"),
        ('{"prompt": [2048]}', 400, "outside the vocabulary"),
        ('{"prompt": "x", "suffix": "y"}', 400, "'suffix' is not supported"),
        ('{"prompt": "x", "max_tokens": 0}', 400, "without echo"),
        ('{"prompt": [5, 6, 7], "max_tokens": 1022}', 400, "of 3 tokens leaves 1021"),
        ('{"prompt": "x", "best_of": 2}', 400, "'best_of' is not supported"),
        ('{"prompt": "x", "guided_json": {}}', 400, "guided_json"),
        ('{"prompt": "x", "temperature": 3}', 400, "but got 3 instead"),
        ('{"prompt": "x", "temperature": 0, "n": 2}', 400, "n must be 1"),
        ('{"prompt": "x", "n": 129}', 400, "Invalid 'n'"),
        ('{"prompt": "x", "stop": ""}', 400, "stop"),
        ('{"prompt": "x", "logprobs": 6}', 400, "Invalid 'logprobs'"),
        ('{"prompt": "x", "stream_options": {}}', 400, "stream_options"),
        (
            '{"prompt": "x", "use_beam_search": true, "stream": true}',
            400,
            "'stream': it is not for",
        ),
        ('{"prompt": "x", "use_beam_search": true, "stop": "y"}', 400, "'stop': it is not for"),
        ('{"prompt": "x", "use_beam_search": true, "n": 128}', 400, "128 is more than the 64"),
        ('{"prompt": "x", "length_penalty": 2}', 400, "use_beam_search"),
        (
            '{"prompt": "x", "use_beam_search": true, "n": 2, "length_penalty": 1e308}',
            400,
            "Invalid 'length_penalty'",
        ),
        ('{"prompt": "x", "n": 2147483648}', 400, "but got 2147483648 instead"),
        ('{"prompt": "x", "temperature": NaN}', 400, "malformed"),
        ('{"prompt": "x", "temperature": 1e999}', 400, "out of range"),
        ('{"prompt": "x", "logit_bias": {"5": 1e308}}', 400, "Invalid 'logit_bias'"),
        ('{"prompt": "x", "logprobs": 2147483648}', 400, "Invalid 'logprobs'"),
        ('{"prompt": "x", "presence_penalty": 2.5}', 400, "Invalid 'presence_penalty'"),
        ('{"prompt": "x", "frequency_penalty": -2.5}', 400, "Invalid 'frequency_penalty'"),
        ('{"prompt": "x", "min_p": 1.5}', 400, "Invalid 'min_p'"),
        ('{"prompt": "x", "model": "gpt-9"}', 404, "'bundled-stories'"),
        (json.dumps({"prompt": "never " * 1100}), 400, "at most 1024"),
        (json.dumps({"prompt": "never " * 150_000}), 400, "has at least "),
        (json.dumps({"prompt": "x", "model": "x" * 900_000}), 404, "… (900,"),
        (json.dumps({"prompt": "x", "stop": "x" * 900_000}), 400, "stop"),
        (json.dumps({"prompt": "x", "use_beam_search": "x" * 900_000}), 400, "use_beam_search"),
        (json.dumps({"prompt": "x" * 2**20}), 413, "longer than 1048576 bytes"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(
    served: Served, body: str, status: int, words: str
) -> None:
    answer = HTTP.post(
        f"{served.url}/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert len(answer.content) < 1_300
    assert {"message", "type", "param", "code"} == error.keys()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", '{"prompt": "x", "temperature": 3}', "temperature"),
        ("completions", '{"max_tokens": 3}', "prompt"),
        ("completions", '{"prompt": "x", "logit_bias": {"5": 1e308}}', "logit_bias"),
        ("completions", '{"prompt": "x", "logit_bias": {"five": 1}}', "logit_bias"),
        ("completions", '{"prompt": "x", "guided_json": {}}', "guided_json"),
        ("completions", '{"prompt": "x", "max_tokens": 1024}', "max_tokens"),
        ("completions", '{"prompt": ["x", 1]}', "prompt"),
        ("completions", '{"prompt": ', None),
        ("chat/completions", '{"messages": [{"content": "x"}]}', "messages[0].role"),
        (
            "chat/completions",
            '{"messages": [{"role": "user", "content": 4}]}',
            "messages[0].content",
        ),
        ("chat/completions", '{"messages": [{"role": "tool", "content": ""}]}', "messages[0].role"),
        (
            "chat/completions",
            json.dumps({"messages": CHAT, "max_completion_tokens": 1024}),
            "max_completion_tokens",
        ),
        ("embeddings", '{"input": "x", "dimensions": "two"}', "dimensions"),
        ("embeddings", '{"input": "x", "dimensions": 9999}', "dimensions"),
        ("embeddings", '{"input": [9999]}', "input"),
        ("completions", '{"prompt": []}', "prompt"),
        ("completions", '{"prompt": "x", "temperature": 0, "n": 2}', "n"),
        ("completions", '{"prompt": "x", "use_beam_search": true, "n": 100}', "n"),
        ("completions", '{"prompt": "x", "stop": ""}', "stop"),
        ("completions", '{"prompt": "x", "min_tokens": 9, "max_tokens": 4}', "min_tokens"),
        ("completions", '{"prompt": "x", "stop_token_ids": [9999]}', "stop_token_ids"),
        (
            "chat/completions",
            '{"messages": [{"role": "user", "content": "", "tool_calls": [1]}]}',
            "messages",
        ),
    ],
)
def test_the_field_at_fault_is_named(
    served: Served, path: str, body: str, param: str | None
) -> None:
    headers = {"content-type": "application/json"}
    answer = HTTP.post(f"{served.url}/v1/{path}", content=body, headers=headers)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param, error


def test_an_agents_request_with_fields_that_change_nothing(served: Served) -> None:
    """By the openai client, which resends its last answer with all fields of a message."""
    create = served.client.chat.completions.create
    harmless: dict[str, Any] = {
        "parallel_tool_calls": True,
        "reasoning_effort": "low",
        "service_tier": "auto",
        "store": False,
        "metadata": {"session": "7"},
        "tool_choice": "auto",
        "tools": [],
        "user": "agent-1",
        "stream_options": None,
    }
    first = create(messages=CHAT, **GREEDY, extra_body={"no_such_field": [1]}, **harmless)
    turn: list[Any] = [first.choices[0].message.model_dump(), {"role": "user", "content": "Go on."}]
    assert "refusal" in turn[0]
    second = create(messages=[*CHAT, *turn], **GREEDY, **harmless)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    plain = create(messages=CHAT, **GREEDY)
    assert first.choices[0].message.content == plain.choices[0].message.content


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "tool"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": CHAT, "tools": [{"type": "function"}]}, "'tools' is not supported"),
        ({"messages": CHAT, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": CHAT, "top_logprobs": 2}, "top_logprobs"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
            "calls of tools",
        ),
        ({"messages": CHAT, "chat_template_kwargs": {"messages": []}}, "messages is no further"),
    ],
)
def test_options_that_chat_lacks_are_refused(
    served: Served, given: dict[str, Any], words: str
) -> None:
    answer = HTTP.post(f"{served.url}/v1/chat/completions", json=given)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_variables_of_the_template_with_any_name_and_depth(served: Served) -> None:
    body = {"messages": CHAT, "max_tokens": 1, "chat_template_kwargs": {"self": 1, "source": 2}}
    url = f"{served.url}/v1/chat/completions"
    assert HTTP.post(url, json=body).status_code == 200
    for depth in (500, 50_000):
        deep = "[" * depth + "]" * depth
        content = json.dumps(body).replace('"self": 1', f'"self": {deep}')
        answer = HTTP.post(url, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == (200 if depth == 500 else 400)
    assert "nested too deeply" in answer.json()["error"]["message"]
