"""`vllm serve` with a KV connector and 200 HTTP requests: `seqtop check` finds nothing, and every
request ends as its client was told.

Run by `make test-vllm`. A third of the requests ends at stop tokens, a tenth at stop strings, which
only vLLM's front end knows, and a tenth of the clients leaves.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import pytest
import token_executor
from against_vllm import START_SECONDS
from stepping import MODEL

from seqtop.export.lifecycle import EngineRun, read_runs
from seqtop.history import FileStore, FileWriter
from seqtop.history.recorder import Recorder
from seqtop.live.session import Session
from seqtop.transport.connection import ConnectionState
from tests.support.waiting import SECONDS

HERE = Path(__file__).resolve().parent
NUM_REQUESTS = int(os.environ.get("NUM_REQUESTS", "200"))
NUM_CLIENTS = 24
"""Requests that are under way at a time."""
NUM_TOKENS = 150
"""The most tokens of a request that is to end in another way."""
STOP_TOKENS = [
    token_executor.FIRST_TOKEN + first + offset
    for first in range(0, token_executor.NUM_TOKENS, 100)
    for offset in range(7)
]
"""Each output has one before long: its tokens are seven apart, and go round."""
STOP_STRINGS = ["the", "ing", "ed", "ly"]
"""As many as vLLM takes. Of 56 tokens in a row, one has one of them in its text."""
LEAVES_AFTER = (1, 3, 10)
"""Events of the answer after which a client leaves."""
_NOT_BOUND = "the server has not bound its port yet"


def kinds() -> list[str]:
    """The ends that the requests are meant to have."""
    num_tokens, num_strings = NUM_REQUESTS // 3, NUM_REQUESTS // 10
    ends = ["stop token"] * num_tokens + ["stop string"] * num_strings + ["leaves"] * num_strings
    ends += ["length"] * (NUM_REQUESTS - len(ends))
    random.Random(1).shuffle(ends)
    return ends


def body(number: int, kind: str) -> dict[str, Any]:
    """The request of this number, as JSON."""
    shared = [300 + position for position in range(16 * (number % 4))]
    more: dict[str, Any] = {
        "stop token": {"stop_token_ids": STOP_TOKENS},
        "stop string": {"stop": STOP_STRINGS},
        "leaves": {"stream": True},
        "length": {},
    }[kind]
    return {
        "model": "made-up",
        "prompt": shared + [900 + number] * (5 + number % 30),
        "max_tokens": 5 + number % 60 if kind == "length" else NUM_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }


@dataclass
class Told:
    """The end of a request, as its client was told."""

    finish_reason: str
    stop_reason: int | str | None = None
    num_tokens: int | None = None
    """`None` if the engine makes more than the client gets."""

    @property
    def kind(self) -> str:
        """The end in the words of `kinds`."""
        if self.finish_reason == "stop":
            return "stop string" if isinstance(self.stop_reason, str) else "stop token"
        return {"abort": "leaves"}.get(self.finish_reason, self.finish_reason)


async def ask(session: aiohttp.ClientSession, number: int, kind: str) -> Told:
    headers = {"X-Request-Id": f"req-{number}"}
    async with session.post("/v1/completions", json=body(number, kind), headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        if kind == "leaves":
            num_left = LEAVES_AFTER[number % len(LEAVES_AFTER)]
            async for line in answer.content:
                num_left -= line.startswith(b"data: ")
                if not num_left:
                    break
            answer.close()
            return Told("abort")
        told = await answer.json()
    (choice,) = told["choices"]
    stop_reason, num_tokens = choice["stop_reason"], told["usage"]["completion_tokens"]
    is_cut = isinstance(stop_reason, str)
    return Told(choice["finish_reason"], stop_reason, None if is_cut else num_tokens)


async def ask_all(port: int) -> dict[str, Told]:
    """Sends all requests, so many at a time; returns the ends by the ids of the requests."""
    seats = asyncio.Semaphore(NUM_CLIENTS)
    timeout = aiohttp.ClientTimeout(total=START_SECONDS)
    connector = aiohttp.TCPConnector(limit=0)

    async def one(number: int, kind: str) -> Told:
        async with seats:
            return await ask(session, number, kind)

    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", timeout=timeout, connector=connector
    ) as session:
        ends = await asyncio.gather(*[one(number, kind) for number, kind in enumerate(kinds())])
    return {f"cmpl-req-{number}-0": told for number, told in enumerate(ends)}


@contextmanager
def served(directory: Path, way: str, *arguments: str) -> Iterator[int]:
    """`vllm serve`, ready, at the port that is yielded."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    environ = {
        "SEQTOP_BIND": f"ipc://{directory}/e",
        "HF_HUB_OFFLINE": "1",
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "STEP_SECONDS": "0.004",  # so that clients that leave do so before their last token
    }
    command = [sys.executable, str(HERE / "serve_http.py"), way, str(MODEL)]
    command += ["--host", "127.0.0.1", "--port", str(port), *arguments]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environ},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            asyncio.run(healthy(port, process, directory / "log"))
            yield port
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # EngineCore is in this group, too
            process.wait()


async def healthy(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until the server answers."""
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        while True:
            assert process.poll() is None, log.read_text()[-5_000:]
            try:
                async with session.get("/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                assert asyncio.get_running_loop().time() < deadline, _NOT_BOUND
            await asyncio.sleep(0.1)


@contextmanager
def recorded(endpoint: str, path: Path) -> Iterator[None]:
    """A recording, from now to the end of all requests.

    vLLM kills its processes when it is told to end, and with them the publisher's.
    """
    recorder, session = Recorder(FileWriter(path)), Session(endpoint)
    session.add_listener(recorder.record)
    with session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        yield
        assert session.wait_until(lambda: num_ended(session) == NUM_REQUESTS, SECONDS)
        assert session.connection.num_missed == session.connection.num_errors == 0
    recorder.close()


def num_ended(session: Session) -> int:
    return sum(bool(request.finish_reason) for request in session.state.requests.values())


SERVER = (
    *("--served-model-name", "made-up", "--dtype", "float16", "--max-model-len", "256"),
    *("--block-size", "16", "--num-gpu-blocks-override", "60", "--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "96", "--enforce-eager"),
)


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="sq") as name:
        yield Path(name)


@pytest.mark.parametrize("connector", ["WorkingConnector", "WorkingSender"])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_nothing_is_found_and_requests_end_as_their_clients_are_told(
    way: str, connector: str, directory: Path
) -> None:
    transfer = {
        "kv_connector": connector,
        "kv_connector_module_path": "kv_connector",
        "kv_role": "kv_both",
    }
    path = directory / "run.seqtop"
    arguments = [*SERVER, "--kv-transfer-config", json.dumps(transfer)]
    with (
        served(directory, way, *arguments) as port,
        recorded(f"ipc://{directory}/e", path),
    ):
        told = asyncio.run(ask_all(port))
    check = subprocess.run(
        [sys.executable, "-m", "seqtop", "check", str(path), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(check.stdout)
    assert (check.returncode, report["findings"]) == (0, []), check.stdout
    with FileStore(path) as store:
        (run,) = read_runs(store)
    ends = Counter(end.finish_reason for end in told.values())
    wrong = {
        name: (end, seen)
        for name, end in told.items()
        if (seen := shown(run, name, has_tokens=end.num_tokens is not None)) != end
    }
    print(
        f"\n{run.info.engine}, {connector}, {way}: {len(told)} HTTP requests, {report['num_steps']}"
        f" steps, {len(report['findings'])} findings; ends {dict(ends)}, {len(wrong)} other than"
        " the clients were told"
    )
    assert not wrong
    assert [end.kind for end in told.values()] == kinds(), "a request ended in another way"


def shown(run: EngineRun, name: str, *, has_tokens: bool) -> Told:
    """The end of a request in a recording."""
    lifecycle = run.requests[name]
    (sequence,) = lifecycle.sequences
    if not has_tokens and len(sequence.output_token_ids) == NUM_TOKENS:
        return Told("abort")  # a busy server learns too late that its client has left
    num_tokens = len(sequence.output_token_ids) if has_tokens else None
    return Told(lifecycle.request.finish_reason or "", sequence.stop_reason, num_tokens)
