"""The HTTP server, driven by the clients that people use."""

import json
import shutil
import subprocess

import openai
import pytest

from seqtop import __version__
from tests.support.http_engine import GREEDY, HTTP, MODEL, SEEDED, Served
from tests.support.waiting import SECONDS, wait_until


def test_requests_are_seen_with_their_text(served: Served) -> None:
    answer = served.client.completions.create(prompt="The lantern", n=2, **SEEDED)
    parts = [f"{answer.id}_parallel_sample_{index}" for index in range(2)]
    wait_until(
        lambda: all((request := served.request(id_)) and request.finish_reason for id_ in parts)
    )
    with served.session.lock:
        state = served.session.state
        for part, choice in zip(parts, answer.choices, strict=True):
            request = state.requests[part]
            assert request.prompt == "The lantern"
            assert state.sequences[request.seq_ids[0]].text == choice.text
            assert request.finish_reason == choice.finish_reason


def test_stop_string_ends_the_text_before_it(served: Served) -> None:
    create = served.client.completions.create
    text = create(prompt="Once upon a time", **GREEDY).choices[0].text
    stop = text[12:18]
    chunks = list(create(prompt="Once upon a time", stop=stop, stream=True, **GREEDY))
    assert "".join(chunk.choices[0].text for chunk in chunks) == text[: text.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_prompt_of_tokens(served: Served) -> None:
    answer = served.client.completions.create(prompt=[40, 41, 42], **GREEDY)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    assert answer.choices[0].text


def test_models_and_health(served: Served) -> None:
    assert [model.id for model in served.client.models.list()] == [MODEL]
    assert HTTP.get(f"{served.url}/health").json() == {"status": "ok"}
    assert HTTP.get(f"{served.url}/version").json() == {"version": __version__}


def test_one_model(served: Served) -> None:
    assert served.client.models.retrieve(MODEL) == next(iter(served.client.models.list()))
    for name in ("other", "organisation/other"):
        with pytest.raises(openai.NotFoundError) as unknown:
            served.client.models.retrieve(name)
        error = unknown.value
        assert (error.type, error.param, error.code) == (
            "invalid_request_error",
            "model",
            "model_not_found",
        )
        assert repr(name) in error.message


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_streams(served: Served) -> None:
    done = subprocess.run(
        [
            *("curl", "--silent", "--show-error", "--no-buffer", f"{served.url}/v1/completions"),
            *("--header", "Content-Type: application/json", "--data"),
            json.dumps({"prompt": "Once upon a time", "stream": True} | GREEDY),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    events = [event.removeprefix("data: ") for event in done.stdout.split("\n\n") if event]
    assert events[-1] == "[DONE]"
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
    whole = served.client.completions.create(prompt="Once upon a time", **GREEDY)
    assert text == whole.choices[0].text
