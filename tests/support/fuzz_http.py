"""Mutated HTTP requests, given to the bundled engine's server over a socket."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import random
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.openai.app import ServedModel
from engine_stub.entrypoints.openai.http_server import HttpServer
from engine_stub.entrypoints.publisher_link import PublisherLink
from engine_stub.entrypoints.reporting import engine_info
from engine_stub.entrypoints.reports import Start
from engine_stub.entrypoints.server import EngineServer
from engine_stub.processing.chat_template import ChatTemplate
from tests.support.checkpoints import make_checkpoint
from tests.support.fuzz import Feed
from tests.support.mutation import HOSTILE, Pool, bytewise, plausible
from tests.support.waiting import SECONDS

_BODIES: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/completions": (
        {"prompt": "once upon", "max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "seed": 3},
        {"prompt": [5, 6, 7], "max_tokens": 3, "logprobs": 2, "stop": ["x", "y"]},
        {"prompt": "a", "max_tokens": 2, "use_beam_search": True, "n": 2, "length_penalty": 1.0},
        {"prompt": "a", "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}},
        {"prompt": "a", "max_tokens": 2, "n": 2, "logit_bias": {"5": 1.0}, "min_tokens": 1},
        {"prompt": "a", "max_tokens": 2, "presence_penalty": 1.0, "repetition_penalty": 1.1},
    ),
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "stop": "x"},
        {
            "messages": [
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            ],
            "max_completion_tokens": 2,
            "logprobs": True,
            "top_logprobs": 2,
        },
    ),
    "/v1/embeddings": (
        {"input": ["one", "two"], "dimensions": 4},
        {"input": [5, 6, 7], "encoding_format": "base64"},
    ),
    "/tokenize": (
        {"prompt": "once upon", "add_special_tokens": False, "return_token_strs": True},
        {"messages": [{"role": "user", "content": "hello"}], "chat_template_kwargs": {"x": 1}},
    ),
    "/detokenize": ({"tokens": [5, 6, 7]},),
}
_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

_UNDECODED = re.compile(
    rb"We could not parse|Missing required|Invalid (type for|key in) '|Invalid '|Supported values"
)
"""The words of refusals of bodies that could not be decoded."""


class _Errors(logging.Handler):
    """Collects what the server logs as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(logging.Formatter().format(record))


class _Client:
    """One connection at a time to a server, whose errors are those of the fuzzing."""

    def __init__(self, choose: random.Random, address: str, errors: _Errors) -> None:
        self._choose, self._address, self._errors = choose, address, errors
        self._connection = http.client.HTTPConnection(address, timeout=SECONDS)
        self._pool = Pool(["hello", "user", 1, 2, 5, 100, 256, 257])

    def feed(self) -> bool:
        choose = self._choose
        path = choose.choice(list(_BODIES))
        tree = choose.choice(_BODIES[path])
        headers = {"Content-Type": "application/json"}
        match choose.randrange(10):
            case 0:
                tree = tree | {choose.choice(list(tree)): self._hostile()}
                body = json.dumps(tree, default=str).encode()
            case 1:
                body = bytewise(choose, json.dumps(tree).encode())
            case _:
                tree = plausible(choose, tree, self._pool, most=2)
                body = json.dumps(tree, default=str).encode()
        if choose.random() < 0.02:
            headers = {choose.choice(("Content-Type", "X", "Expect")): choose.choice("a b".split())}
        try:
            self._connection.request("POST", path, body, headers)
            response = self._connection.getresponse()
            content = response.read()
        except (http.client.HTTPException, OSError) as error:
            raise AssertionError(f"{error!r} from {path} {body!r}") from error
        said = f"{response.status} {content[:500]!r} from {path} {body!r}"
        assert response.status in (200, 400, 404, 413, 415), said
        assert not self._errors.records, (self._errors.records[0], said)
        return response.status != 415 and not _UNDECODED.search(content)

    def _hostile(self) -> Any:
        value = self._choose.choice(HOSTILE)
        return value if isinstance(value, str | int | float | list) else str(value)

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def start(choose: random.Random) -> Iterator[Feed]:
    """A server with an engine of a tiny model with random weights."""
    errors = _Errors()
    logging.getLogger().addHandler(errors)
    torch.set_num_threads(1)
    try:
        with (
            TemporaryDirectory(prefix="sq") as directory,
            _serve(Path(directory)) as address,
            contextlib.closing(_Client(choose, address, errors)) as client,
        ):
            yield client.feed
    finally:
        logging.getLogger().removeHandler(errors)


@contextlib.contextmanager
def _serve(directory: Path) -> Iterator[str]:
    model = make_checkpoint("llama", directory / "model", max_position_embeddings=48)
    engine = LLMEngine(EngineConfig(model=model, device="cpu", block_size=4, num_gpu_blocks=200))
    info = engine_info(engine, engine_id="fuzzed", control=False)
    served = ServedModel("tiny", engine.max_model_len, ChatTemplate(_TEMPLATE, {}), (), 0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    stopped = threading.Event()
    with (
        contextlib.closing(PublisherLink()) as publisher,
        HttpServer(address, engine, served) as server,
    ):
        publisher.start(Start(info, f"ipc://{directory}/e", False, None))
        engine_server = EngineServer(engine, publisher, sources=[server.bridge])
        thread = threading.Thread(target=engine_server.run, args=(stopped.is_set,))
        thread.start()
        try:
            yield address
        finally:
            stopped.set()
            thread.join(SECONDS)
