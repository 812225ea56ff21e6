"""The HTTP server, driven by the clients that people use."""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import openai
import pytest
from transformers import AutoTokenizer

from engine_stub.config import DEFAULT_MODEL
from engine_stub.processing.tokenizer import Tokenizer
from seqtop.connection import ConnectionState
from seqtop.sequence import SequenceStatus
from seqtop.session import Session
from seqtop.state.model import RequestState
from tests.support.checkpoints import make_checkpoint
from tests.support.waiting import SECONDS, wait_until

ENGINE = (sys.executable, "-m", "engine_stub", "serve", "--device", "cpu", "--threads", "1")
MODEL = "bundled-stories"
TOKENIZER = Tokenizer(DEFAULT_MODEL)
CHAT = [
    {"role": "system", "content": "You are a kind storyteller."},
    {"role": "user", "content": "Tell me a story about a fox."},
]
GREEDY: dict[str, Any] = {"model": MODEL, "max_tokens": 24, "temperature": 0}
SEEDED: dict[str, Any] = {"model": MODEL, "max_tokens": 24, "temperature": 0.9, "seed": 7}
ENDLESS: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 1000,
    "extra_body": {"ignore_eos": True},
}
"""At the fixture's pace, ten seconds of output: never over by the time a test ends it."""


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str
    session: Session

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=SECONDS
        )

    def request(self, request_id: str) -> RequestState | None:
        with self.session.lock:
            return self.session.state.requests.get(request_id)

    def running(self) -> list[str]:
        with self.session.lock:
            return [
                each.request_id
                for each in self.session.state.sequences.values()
                if each.status is SequenceStatus.RUNNING and each.output_token_ids
            ]

    def wait_until_aborted(self, request_id: str) -> None:
        """Wait for the end of the request, and for the engine to hold no block after it."""
        wait_until(
            lambda: (request := self.request(request_id)) and request.finish_reason is not None
        )
        with self.session.lock:
            state = self.session.state
            assert state.requests[request_id].finish_reason == "abort"
            for seq_id in state.requests[request_id].seq_ids:
                assert state.sequences[seq_id].block_table == []
                assert len(state.sequences[seq_id].output_token_ids) < ENDLESS["max_tokens"]
        # The figures are of the step that is told after the end.
        wait_until(lambda: (stats := self.session.state.stats) and stats.num_used_blocks == 0)


@contextmanager
def serve(*arguments: str) -> Iterator[Served]:
    with TemporaryDirectory(prefix="sq") as directory, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        endpoint = f"ipc://{Path(directory, 'e')}"
        process = subprocess.Popen(
            [*ENGINE, "--bind", endpoint, "--http", address, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert f"http://{address}/v1" in lines[-1]
        session = Session(endpoint)
        session.start()
        try:
            assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
            yield Served(process, f"http://{address}", session)
        finally:
            session.close()
            process.terminate()
            _, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert stderr == ""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve("--control", "--pace", "100") as running:
        yield running


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


def test_chat_is_put_as_the_model_was_trained(served: Served) -> None:
    answer = served.client.chat.completions.create(
        model=MODEL, messages=CHAT, stop="###", max_completion_tokens=5
    )
    wait_until(lambda: served.request(answer.id))
    request = served.request(answer.id)
    assert request is not None
    assert request.prompt == (
        "<|begin|>You are a kind storyteller.\n\nUser: Tell me a story about a fox.\nBot:"
    )
    assert request.prompt_token_ids == TOKENIZER.encode(request.prompt.removeprefix("<|begin|>"))
    assert request.sampling_params is not None
    assert request.sampling_params.stop == ["###", "\nUser:"]
    assert request.sampling_params.max_tokens == 5


def test_requests_are_seen_with_their_text(served: Served) -> None:
    answer = served.client.completions.create(prompt="The lantern", n=2, **SEEDED)
    parts = [f"{answer.id}_parallel_sample_{index}" for index in range(2)]
    wait_until(lambda: all((each := served.request(id_)) and each.finish_reason for id_ in parts))
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
    assert "".join(each.choices[0].text for each in chunks) == text[: text.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_prompt_of_tokens(served: Served) -> None:
    answer = served.client.completions.create(prompt=[40, 41, 42], **GREEDY)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3
    assert answer.choices[0].text


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


def test_models_and_health(served: Served) -> None:
    assert [model.id for model in served.client.models.list()] == [MODEL]
    assert httpx.get(f"{served.url}/health").json() == {"status": "ok"}


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


def test_a_stream_that_is_closed_gives_its_blocks_back(served: Served) -> None:
    stream = served.client.completions.create(prompt="A river", stream=True, n=2, **ENDLESS)
    chunks = [next(stream) for _ in range(4)]
    wait_until(lambda: len(served.running()) == 2)
    stream.close()
    for index in range(2):
        served.wait_until_aborted(f"{chunks[0].id}_parallel_sample_{index}")


def post_by_hand(served: Served, body: bytes, content_length: int) -> socket.socket:
    url = httpx.URL(served.url)
    client = socket.create_connection((url.host, url.port))
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (content_length, body)
    )
    return client


def test_a_client_that_does_not_finish_its_request(served: Served) -> None:
    post_by_hand(served, b'{"prompt"', 99).close()
    # Nothing may have been written to standard error: the fixture looks at its end.
    assert httpx.get(f"{served.url}/health").status_code == 200


@pytest.mark.parametrize("search", [{}, {"use_beam_search": True, "n": 2, "max_tokens": 400}])
def test_a_client_that_does_not_wait_for_its_answer(served: Served, search: dict[str, Any]) -> None:
    asked = {"prompt": "A river", "max_tokens": 1000, "ignore_eos": True, **search}
    body = json.dumps(asked).encode()
    wait_until(lambda: not served.running())  # of the tests before
    with post_by_hand(served, body, len(body)):
        wait_until(served.running)
        request_id = served.running()[0]
    served.wait_until_aborted(request_id)


def test_a_viewer_aborts_and_the_client_is_told(served: Served) -> None:
    stream = served.client.completions.create(prompt="A river", stream=True, **ENDLESS)
    served.session.abort(next(stream).id)
    with pytest.raises(openai.APIError, match="was aborted"):
        list(stream)


def test_a_viewer_aborts_and_the_waiting_client_is_told(served: Served) -> None:
    body = b'{"prompt": "A river", "max_tokens": 1000, "ignore_eos": true}'
    wait_until(lambda: not served.running())  # of the tests before
    with post_by_hand(served, body, len(body)) as client:
        wait_until(served.running)
        served.session.abort(served.running()[0])
        client.settimeout(SECONDS)
        answer = client.recv(4096)
    assert answer.startswith(b"HTTP/1.1 503")
    wait_until(lambda: not served.running())


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ('{"prompt": ', 400, "truncated"),
        ("[]", 400, "Expected `object`"),
        ('{"max_tokens": 3}', 400, "missing required field `prompt`"),
        ('{"prompt": []}', 400, "no tokens"),
        ('{"prompt": ["one", "two"]}', 400, "several"),
        ('{"prompt": [2048]}', 400, "outside the vocabulary"),
        ('{"prompt": "x", "echo": true}', 400, "echo is not supported"),
        ('{"prompt": "x", "best_of": 2}', 400, "best_of is not supported"),
        ('{"prompt": "x", "guided_json": {}}', 400, "guided_json"),
        ('{"prompt": "x", "temperature": 3}', 400, "$.temperature"),
        ('{"prompt": "x", "temperature": 0, "n": 2}', 400, "n must be 1"),
        ('{"prompt": "x", "n": 129}', 400, "$.n"),
        ('{"prompt": "x", "stop": ""}', 400, "stop"),
        ('{"prompt": "x", "logprobs": 6}', 400, "$.logprobs"),
        ('{"prompt": "x", "stream_options": {}}', 400, "stream_options"),
        ('{"prompt": "x", "use_beam_search": true, "stream": true}', 400, "stream is not for"),
        ('{"prompt": "x", "use_beam_search": true, "stop": "y"}', 400, "stop is not for"),
        ('{"prompt": "x", "use_beam_search": true, "n": 128}', 400, "128 is more than the 64"),
        ('{"prompt": "x", "length_penalty": 2}', 400, "use_beam_search"),
        (
            '{"prompt": "x", "use_beam_search": true, "n": 2, "length_penalty": 1e308}',
            400,
            "$.length_penalty",
        ),
        ('{"prompt": "x", "n": 2147483648}', 400, "$.n"),
        ('{"prompt": "x", "temperature": NaN}', 400, "malformed"),
        ('{"prompt": "x", "temperature": 1e999}', 400, "out of range"),
        ('{"prompt": "x", "logit_bias": {"5": 1e308}}', 400, "$.logit_bias"),
        ('{"prompt": "x", "logprobs": 2147483648}', 400, "$.logprobs"),
        ('{"prompt": "x", "presence_penalty": 2.5}', 400, "$.presence_penalty"),
        ('{"prompt": "x", "frequency_penalty": -2.5}', 400, "$.frequency_penalty"),
        ('{"prompt": "x", "min_p": 1.5}', 400, "$.min_p"),
        ('{"prompt": "x", "model": "gpt-9"}', 404, "'bundled-stories'"),
        (json.dumps({"prompt": "never " * 1100}), 400, "at most 1024"),
        (json.dumps({"prompt": "x" * 2**20}), 413, "longer than 1048576 bytes"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(
    served: Served, body: str, status: int, words: str
) -> None:
    answer = httpx.post(
        f"{served.url}/v1/completions", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert {"message", "type", "param", "code"} == error.keys()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "4"}]}, "tool"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"messages": CHAT, "tools": [{"type": "function"}]}, "tools is not supported"),
        ({"messages": CHAT, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": CHAT, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": CHAT, "chat_template_kwargs": {"messages": []}}, "messages is no further"),
    ],
)
def test_what_chat_does_not_offer(served: Served, given: dict[str, Any], words: str) -> None:
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=given)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_variables_of_the_template_with_any_name_and_depth(served: Served) -> None:
    body = {"messages": CHAT, "max_tokens": 1, "chat_template_kwargs": {"self": 1, "source": 2}}
    url = f"{served.url}/v1/chat/completions"
    assert httpx.post(url, json=body).status_code == 200
    for depth in (500, 50_000):
        deep = "[" * depth + "]" * depth
        content = json.dumps(body).replace('"self": 1', f'"self": {deep}')
        answer = httpx.post(url, content=content, headers={"content-type": "application/json"})
        assert answer.status_code == (200 if depth == 500 else 400)
    assert "nested too deeply" in answer.json()["error"]["message"]


def test_openai_client_recognises_the_errors(served: Served) -> None:
    with pytest.raises(openai.BadRequestError) as too_long:
        served.client.completions.create(model=MODEL, prompt=[5] * 1024)
    assert too_long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError) as unknown:
        served.client.completions.create(model="other", prompt="x")
    assert unknown.value.code == "model_not_found"


def test_pages_of_other_origins_are_kept_out(served: Served) -> None:
    url = f"{served.url}/v1/completions"
    assert httpx.post(url, content='{"prompt": "x"}').status_code == 415
    assert httpx.post(url, json={"prompt": "x"}, headers={"host": "a.page"}).status_code == 400


def test_a_stopped_engine_ends_its_streams() -> None:
    with serve("--pace", "100") as running:
        stream = running.client.completions.create(prompt="A river", stream=True, **ENDLESS)
        next(stream)
        running.process.terminate()
        with pytest.raises(openai.APIError, match="was aborted"):
            list(stream)


def test_chat_follows_the_models_own_template(tmp_path: Path) -> None:
    path = make_checkpoint("qwen3", tmp_path / "my-qwen")
    (path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<eos>",
                "chat_template": "{% for message in messages %}{% if message.role == 'system' %}"
                "{{ raise_exception('no rules here') }}{% endif %}"
                "[{{ message.role }}] {{ message.content }}{{ eos_token }}{% endfor %}"
                "{% if thinking %}hm {% endif %}",
            }
        )
    )
    theirs = AutoTokenizer.from_pretrained(path)
    with serve("--model", str(path)) as running:
        create = running.client.chat.completions.create
        answer = create(
            model="my-qwen",
            messages=CHAT[1:],
            max_tokens=3,
            extra_body={"chat_template_kwargs": {"thinking": True}},
        )
        wait_until(lambda: running.request(answer.id))
        request = running.request(answer.id)
        assert request is not None
        assert request.prompt == "[user] Tell me a story about a fox.<eos>hm "
        expected = theirs.apply_chat_template(CHAT[1:], thinking=True, return_dict=False)
        assert request.prompt_token_ids == expected
        assert answer.usage.prompt_tokens == len(expected)
        with pytest.raises(openai.BadRequestError, match="no rules here"):
            create(model="my-qwen", messages=CHAT)


def test_chat_is_refused_for_models_without_a_template(tmp_path: Path) -> None:
    without = shutil.ignore_patterns("*.jinja")
    shutil.copytree(DEFAULT_MODEL, tmp_path / "my-llama", ignore=without)
    with serve("--model", str(tmp_path / "my-llama")) as running:
        assert [model.id for model in running.client.models.list()] == ["my-llama"]
        with pytest.raises(openai.BadRequestError, match="no chat template; use /v1/completions"):
            running.client.chat.completions.create(model="my-llama", messages=CHAT)
        answer = running.client.completions.create(model="my-llama", prompt="x", max_tokens=2)
        assert answer.choices[0].text


def refusal(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([*ENGINE, *arguments], capture_output=True, text=True, timeout=SECONDS)
    (sentence,) = done.stderr.strip().splitlines()
    return done.returncode, sentence


@pytest.mark.parametrize(
    ("address", "words"), [("0.0.0.0:8000", "--insecure"), ("8000", "is not of the form HOST:PORT")]
)
def test_addresses_that_are_refused(address: str, words: str) -> None:
    status, sentence = refusal("--http", address)
    assert status == 2
    assert words in sentence


def test_address_in_use(endpoint: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        status, sentence = refusal("--bind", endpoint, "--http", address)
    assert status == 1
    assert address in sentence
    assert "in use" in sentence
