"""A client of the bundled engine's HTTP server that does not read its answer: it delays nobody."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engine_stub.entrypoints.openai.app import ServedModel, make_app
from engine_stub.entrypoints.openai.bridge import Bridge
from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from engine_stub.entrypoints.server import EngineServer
from seqtop.explain.explanation import find_request
from seqtop.history import FileStore, FileWriter
from seqtop.history.step_time import StepTime
from seqtop.ledger.account import SHARED_STEP, Charge
from seqtop.ledger.ledger import find_blame
from seqtop.sequence import SamplingParams
from seqtop.whatif.replay import Clock, RecordingSink
from tests.support.running import DirectPublisher
from tests.support.simulated_model import engine_without_model
from tests.support.waiting import SECONDS

CLIENT, OTHER = "cmpl-client-00000001", "cmpl-other-00000002"
LENGTHS = {CLIENT: 200, OTHER: 300}
EARLY = {f"early-{number}": 10 + number for number in range(4)}
"""Requests before them, in whose steps the costs of tokens become known."""
STEP_TIME = StepTime(per_step=0.01, per_prefill_token=0.001, per_decode_token=0.002)


class Client:
    """A client of the application, as the HTTP server beside it sees one.

    Args:
        most: The chunks that it reads; from then on it is waited for.
    """

    def __init__(self, name: str, most: float = float("inf")) -> None:
        self.num_chunks = 0
        self._name, self._most = name, most
        self._body: bytes | None = json.dumps(
            {"prompt": [7] * 30, "max_tokens": LENGTHS[name], "ignore_eos": True, "stream": True}
        ).encode()

    async def post(self, app: Any) -> None:
        headers = {
            "host": "localhost",
            "content-type": "application/json",
            "x-request-id": self._name.split("-")[1],
        }
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/completions",
            "query_string": b"",
            "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
        }
        await app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is None:
            await asyncio.Event().wait()  # it never disconnects
        return {"type": "http.request", "body": body}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            self.num_chunks += 1
            if self.num_chunks >= self._most:
                await asyncio.Event().wait()


class Gate(Bridge):
    """Passes the first requests on when all are there, so that every run is the same."""

    is_open = False

    def serve(self, server: EngineServer) -> None:
        self.is_open |= self._commands.qsize() == len(LENGTHS)
        if self.is_open:
            super().serve(server)


async def serve(path: Path, *clients: Client) -> None:
    """Records an engine on a thread of its own, by a simulated clock, while it serves clients."""
    clock, gate, ended = Clock(), Gate(), asyncio.Event()
    clock.now, loop = 1_000.0, asyncio.get_running_loop()

    outputs = {name: [7] * number for name, number in (LENGTHS | EARLY).items()}
    engine = engine_without_model(
        clock, outputs, STEP_TIME.step_seconds, max_model_len=None, num_gpu_blocks=400
    )

    def run() -> None:
        with FileWriter(path) as writer:
            sink = RecordingSink(writer)
            sink.publish(engine_info(engine, engine_id="served", control=False))
            steps = StepPublisher(sink)
            for name, length in EARLY.items():
                params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
                for group in engine.add_request(name, [9] * (3 * length), params, clock.now):
                    steps.arrived(group)
                for _ in range(length // 2):  # the next one comes while it decodes
                    steps.stepped(engine.step())
            while engine.has_unfinished_requests():
                steps.stepped(engine.step())
            EngineServer(engine, DirectPublisher(sink), sources=[gate]).run(
                lambda: gate.is_open and not engine.has_unfinished_requests()
            )
        loop.call_soon_threadsafe(ended.set)

    model = ServedModel("model", 1_000, None, (), 0)
    app = make_app(gate, model, engine.tokenizer, allowed_hosts=["localhost"])
    tasks = [asyncio.create_task(client.post(app)) for client in clients]
    threading.Thread(target=run, daemon=True).start()
    await asyncio.wait_for(ended.wait(), SECONDS)
    await asyncio.wait_for(tasks[-1], SECONDS)
    tasks[0].cancel()


def test_a_client_that_does_not_read_delays_nobody(tmp_path: Path) -> None:
    """The engine puts tokens into a queue, and never waits: a slow client is charged as any."""
    charged: list[list[Charge]] = []
    for most in (1, float("inf")):
        path = tmp_path / f"{most}.seqtop"
        client, other = Client(CLIENT, most), Client(OTHER)
        asyncio.run(serve(path, client, other))
        assert client.num_chunks == 1 or most > 1
        assert other.num_chunks == LENGTHS[OTHER] + 1
        with FileStore(path) as recording:
            requests = recording.at(recording.last).requests
            # It has ended, and its blocks are free, although its client has not read it.
            assert requests[CLIENT].finish_reason == requests[OTHER].finish_reason == "length"
            match = find_request(recording, OTHER)
            assert match is not None
            charged.append(find_blame(recording, match[0]).own.charges())
    slow, quick = charged
    by_client = [item for item in slow if item.request_id == CLIENT]
    assert [item.cause for item in by_client] == [SHARED_STEP]
    assert by_client[0].seconds == pytest.approx(30 * 0.001 + (LENGTHS[CLIENT] - 1) * 0.002)
    assert [replace(item, seconds=0.0) for item in slow] == [
        replace(item, seconds=0.0) for item in quick
    ]
    assert [item.seconds for item in slow] == pytest.approx([item.seconds for item in quick])
