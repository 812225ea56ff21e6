"""The tokens of texts and conversations, over HTTP."""

from typing import Any

import httpx
import pytest

from engine_stub.config import DEFAULT_MODEL
from engine_stub.processing.tokenizer import Tokenizer
from tests.support.http_engine import CHAT, GREEDY, HTTP, Served

TOKENIZER = Tokenizer(DEFAULT_MODEL)


def post(served: Served, path: str, body: dict[str, Any]) -> httpx.Response:
    return HTTP.post(f"{served.url}/{path}", json=body)


def test_a_text_is_tokenized_as_the_engine_does(served: Served) -> None:
    text = "Once upon a time, a fox."
    tokens = TOKENIZER.encode(text)
    body = {"prompt": text, "return_token_strs": True}
    assert post(served, "tokenize", body).json() == {
        "count": len(tokens),
        "max_model_len": 1024,
        "tokens": tokens,
        "token_strs": [TOKENIZER.id_to_token(token) for token in tokens],
    }
    usage = served.client.completions.create(prompt=text, **GREEDY).usage
    assert usage is not None
    assert usage.prompt_tokens == len(tokens)
    assert post(served, "detokenize", {"tokens": tokens[1:]}).json() == {"prompt": text}


def test_special_tokens_are_added_unless_refused(served: Served) -> None:
    given = {
        add: post(served, "tokenize", {"prompt": "Once", "add_special_tokens": add}).json()
        for add in (True, False)
    }
    assert given[True]["tokens"] == [TOKENIZER.bos_token_id, *given[False]["tokens"]]
    assert given[True]["token_strs"] is None
    special = TOKENIZER.id_to_token(given[True]["tokens"][0])
    text = post(served, "detokenize", {"tokens": given[True]["tokens"]}).json()["prompt"]
    assert text == f"{special}Once"


def test_a_conversation_is_tokenized_as_its_prompt(served: Served) -> None:
    answer = post(served, "tokenize", {"messages": CHAT}).json()
    usage = served.client.chat.completions.create(messages=CHAT, **GREEDY).usage
    assert usage is not None
    assert answer["count"] == len(answer["tokens"]) == usage.prompt_tokens


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("tokenize", {}, 400, "prompt"),
        ("tokenize", {"prompt": "x", "messages": CHAT}, 400, "prompt"),
        ("tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("tokenize", {"prompt": "never " * 1100}, 400, "prompt"),
        ("tokenize", {"prompt": "never " * 150_000}, 400, "prompt"),
        ("tokenize", {"messages": CHAT, "add_special_tokens": True}, 400, "add_special_tokens"),
        ("detokenize", {}, 400, "tokens"),
        ("detokenize", {"tokens": [2048]}, 400, "tokens"),
        ("detokenize", {"tokens": [-1]}, 400, "tokens"),
        ("detokenize", {"tokens": [2**70]}, 400, "tokens"),
        ("detokenize", {"tokens": [5] * 1025}, 400, "tokens"),
        ("detokenize", {"tokens": [5], "model": "other"}, 404, "model"),
    ],
)
def test_bodies_that_cannot_be_tokenized(
    served: Served, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    answer = post(served, path, body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
