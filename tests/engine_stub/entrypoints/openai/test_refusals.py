"""Malformed bodies, refused over HTTP in the words of OpenAI's API."""

import json
from typing import Any

import openai
import pytest

from tests.support.http_engine import HTTP, MODEL, Served

WORDS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"temperature": 3},
        (
            "Invalid 'temperature': decimal above maximum value."
            " Expected a value <= 2, but got 3 instead."
        ),
        "decimal_above_max_value",
    ),
    (
        {"temperature": -0.5},
        (
            "Invalid 'temperature': decimal below minimum value."
            " Expected a value >= 0, but got -0.5 instead."
        ),
        "decimal_below_min_value",
    ),
    (
        {"top_p": 0},
        "Invalid 'top_p': decimal below minimum value. Expected a value > 0, but got 0 instead.",
        "decimal_below_min_value",
    ),
    (
        {"n": 130},
        "Invalid 'n': integer above maximum value. Expected a value <= 128, but got 130 instead.",
        "integer_above_max_value",
    ),
    (
        {"max_tokens": -678},
        (
            "Invalid 'max_tokens': integer below minimum value."
            " Expected a value >= 0, but got -678 instead."
        ),
        "integer_below_min_value",
    ),
    (
        {"max_tokens": 10**400},
        (
            "Invalid 'max_tokens': integer above maximum value."
            f" Expected a value <= 2147483647, but got 1{'0' * 99}… (401 characters) instead."
        ),
        "integer_above_max_value",
    ),
    (
        {"logprobs": 6},
        (
            "Invalid 'logprobs': integer above maximum value."
            " Expected a value <= 5, but got 6 instead."
        ),
        "integer_above_max_value",
    ),
    (
        {"logit_bias": {"5": 101}},
        "Invalid 'logit_bias': decimal above maximum value. Expected a value <= 100.",
        "decimal_above_max_value",
    ),
    (
        {"max_tokens": 1.5},
        "Invalid type for 'max_tokens': expected an integer, but got a decimal number instead.",
        "invalid_type",
    ),
    (
        {"temperature": "hot"},
        "Invalid type for 'temperature': expected a decimal number, but got a string instead.",
        "invalid_type",
    ),
    (
        {"stream": [True]},
        "Invalid type for 'stream': expected a boolean, but got an array instead.",
        "invalid_type",
    ),
    (
        {"stop": {}},
        "Invalid type for 'stop': expected one of a string or array, but got an object instead.",
        "invalid_type",
    ),
    (
        {"prompt": None},
        "Invalid type for 'prompt': expected one of a string or array, but got null instead.",
        "invalid_type",
    ),
    (
        {"logit_bias": {"five": 1}},
        "Invalid key in 'logit_bias': expected an integer, but got a string instead.",
        "invalid_type",
    ),
    (
        {"stop": ["x"] * 17},
        (
            "Invalid 'stop': array too long."
            " Expected an array with maximum length 16, but got an array with length 17 instead."
        ),
        "array_above_max_length",
    ),
    (
        {"logit_bias": {str(token): 1 for token in range(301)}},
        (
            "Invalid 'logit_bias': too many properties. Expected an object with at most"
            " 300 properties, but got an object with 301 properties instead."
        ),
        "object_above_max_properties",
    ),
    (
        {"suffix": "y"},
        "Unsupported parameter: 'suffix' is not supported by this engine.",
        "unsupported_parameter",
    ),
    (
        {"temperature": 0, "n": 2},
        "Invalid value for 'n': greedy sampling gives one output, so n must be 1, got 2.",
        "invalid_value",
    ),
    (
        {"max_tokens": 0},
        "Invalid value for 'max_tokens': it must be at least 1 in requests without echo.",
        "invalid_value",
    ),
]


@pytest.mark.parametrize(("given", "words", "code"), WORDS)
def test_openais_client_is_told_the_parameter(
    served: Served, given: dict[str, Any], words: str, code: str
) -> None:
    (param, *_) = [name for name in given if f"'{name}'" in words]
    with pytest.raises(openai.BadRequestError) as refused:
        served.client.completions.create(model=MODEL, prompt="x", extra_body=given)
    assert refused.value.body == {
        "message": words,
        "type": "invalid_request_error",
        "param": param,
        "code": code,
    }


@pytest.mark.parametrize(
    ("path", "body", "words", "param", "code"),
    [
        (
            "chat/completions",
            {},
            "Missing required parameter: 'messages'.",
            "messages",
            "missing_required_parameter",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "x"}, {"content": "x"}]},
            "Missing required parameter: 'messages[1].role'.",
            "messages[1].role",
            "missing_required_parameter",
        ),
        (
            "chat/completions",
            {"messages": []},
            (
                "Invalid 'messages': empty array."
                " Expected an array with minimum length 1, but got an empty array instead."
            ),
            "messages",
            "empty_array",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "tool", "content": "x"}]},
            (
                "Invalid value for 'messages[0].role': 'tool'."
                " Supported values are: 'assistant', 'developer', 'system', 'user'."
            ),
            "messages[0].role",
            "invalid_value",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            (
                "Invalid value for 'messages[0].content[0].type': 'image_url'."
                " Supported values are: 'text'."
            ),
            "messages[0].content[0].type",
            "invalid_value",
        ),
        (
            "embeddings",
            {"input": "x", "encoding_format": "h" * 900_000},
            (
                f"Invalid value for 'encoding_format': '{'h' * 100}… (900,000 characters)'."
                " Supported values are: 'base64', 'float'."
            ),
            "encoding_format",
            "invalid_value",
        ),
        (
            "embeddings",
            {"input": [{}]},
            (
                "Invalid type for 'input[0]':"
                " expected one of an integer, string or array, but got an object instead."
            ),
            "input[0]",
            "invalid_type",
        ),
        (
            "embeddings",
            [],
            (
                "We could not parse the JSON body of your request:"
                " expected an object, but got an array instead."
            ),
            None,
            None,
        ),
    ],
)
def test_places_inside_a_body(
    served: Served, path: str, body: Any, words: str, param: str | None, code: str | None
) -> None:
    answer = HTTP.post(f"{served.url}/v1/{path}", json=body)
    assert answer.status_code == 400
    assert answer.json() == {
        "error": {"message": words, "type": "invalid_request_error", "param": param, "code": code}
    }


@pytest.mark.parametrize(
    ("body", "words", "param"),
    [
        (
            '{"prompt": ',
            "We could not parse the JSON body of your request: Input data was truncated.",
            None,
        ),
        (
            '{"prompt": "x", "temperature": 1e999}',
            "Invalid value for 'temperature': the number is out of range.",
            "temperature",
        ),
        (
            '{"prompt": "x", "max_tokens": ' + "9" * 5_000 + "}",
            "Invalid value for 'max_tokens': the number is out of range.",
            "max_tokens",
        ),
        # The value is not shown, because the rest of the body cannot be read.
        (
            '{"prompt": "x", "n": 129, "unknown": NaN}',
            "Invalid 'n': integer above maximum value. Expected a value <= 128.",
            "n",
        ),
    ],
)
def test_texts_that_are_no_json_of_python(
    served: Served, body: str, words: str, param: str | None
) -> None:
    url, headers = f"{served.url}/v1/completions", {"content-type": "application/json"}
    error = HTTP.post(url, content=body, headers=headers).json()["error"]
    assert (error["message"], error["param"]) == (words, param)


def test_no_refusal_has_the_words_of_a_library(served: Served) -> None:
    for given, _, _ in WORDS:
        body = json.dumps({"prompt": "x"} | given)
        headers = {"content-type": "application/json"}
        answer = HTTP.post(f"{served.url}/v1/completions", content=body, headers=headers)
        assert "$" not in answer.text
        assert "`" not in answer.text
