"""An engine with its HTTP server in a process of its own, and requests for it."""

import socket
import ssl
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

from seqtop.live.session import Session
from seqtop.sequence import SequenceStatus
from seqtop.state.model import RequestState
from seqtop.transport.connection import ConnectionState
from tests.support.forked import start
from tests.support.waiting import SECONDS, wait_until

ENGINE = (sys.executable, "-m", "engine_stub", "serve", "--device", "cpu", "--threads", "1")
MODEL = "bundled-stories"
CERTIFICATES = ssl.create_default_context()
"""To read those of the system takes longer than a request; each new client would do it."""
HTTP = httpx.Client(
    verify=CERTIFICATES, timeout=SECONDS, limits=httpx.Limits(max_keepalive_connections=0)
)
CHAT: list[Any] = [
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
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=0,
            timeout=SECONDS,
            http_client=openai.DefaultHttpxClient(verify=CERTIFICATES),
        )

    def request(self, request_id: str) -> RequestState | None:
        with self.session.lock:
            return self.session.state.requests.get(request_id)

    def running(self) -> list[str]:
        with self.session.lock:
            return [
                sequence.request_id
                for sequence in self.session.state.sequences.values()
                if sequence.status is SequenceStatus.RUNNING and sequence.output_token_ids
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
        # The figures are of the step that is published after the end.
        wait_until(lambda: (stats := self.session.state.stats) and stats.num_used_blocks == 0)


@contextmanager
def serve(*arguments: str) -> Iterator[Served]:
    with TemporaryDirectory(prefix="sq") as directory, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        endpoint = f"ipc://{Path(directory, 'e')}"
        process = start(
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


def post_by_hand(served: Served, body: bytes, content_length: int) -> socket.socket:
    url = httpx.URL(served.url)
    client = socket.create_connection((url.host, url.port))
    client.sendall(
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (content_length, body)
    )
    return client
