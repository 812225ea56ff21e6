"""The limits of `seqtop serve`: terminal sizes, sessions, messages, and its end."""

import asyncio
import contextlib
import json
import logging
import shlex
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("textual_serve", reason="textual-serve is not installed")

from aiohttp import ClientWebSocketResponse, WSCloseCode, WSMsgType
from aiohttp.test_utils import TestClient, TestServer
from textual_serve.app_service import AppService

from seqtop.web.server import MAX_HEIGHT, MAX_SESSIONS, MAX_WIDTH, AppServer, terminal_size

ECHO = """
import json, os, sys
out = sys.stdout.buffer
def send(data):
    out.write(b"D" + len(data).to_bytes(4, "big") + data)
    out.flush()
out.write(b"__GANGLION__\\n")
send(json.dumps([int(os.environ["COLUMNS"]), int(os.environ["ROWS"])]).encode())
while head := sys.stdin.buffer.read(5):
    data = sys.stdin.buffer.read(int.from_bytes(head[1:], "big"))
    if b"quit" in data:
        break
    send(data)
"""
"""An app that returns the size that it was started with, and then each packet."""


class Served(AppServer):
    def __init__(self) -> None:
        command = shlex.join([sys.executable, "-c", ECHO])
        super().__init__(command, "127.0.0.1", 0, host_names=frozenset())
        self.public_url = ""
        self._processes: list[asyncio.subprocess.Process] = []

    async def _process_messages(self, websocket: Any, app_service: AppService) -> None:
        assert app_service._process is not None
        self._processes.append(app_service._process)
        await super()._process_messages(websocket, app_service)

    async def wait_for_processes(self) -> None:
        """Waits until the pipes are closed, which the event loop must not outlive."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
            with contextlib.suppress(OSError):
                await process.stdin.wait_closed()


def run(test: Callable[[TestClient[Any, Any]], Awaitable[None]]) -> None:
    async def main() -> None:
        server = Served()
        async with TestClient(TestServer(await server._make_app())) as client:
            await test(client)
        await server.wait_for_processes()

    asyncio.run(main())


async def received(websocket: ClientWebSocketResponse) -> Any:
    message = await websocket.receive()
    assert message.type is WSMsgType.BINARY, message
    return json.loads(message.data)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ((80, 24), (80, 24)),
        ((20_000, 20_000), (MAX_WIDTH, MAX_HEIGHT)),
        ((0, -5), (1, 1)),
        ((10**30, 24), (MAX_WIDTH, 24)),
    ],
)
def test_the_size_of_a_terminal_is_limited(given: tuple[int, int], size: tuple[int, int]) -> None:
    async def test(client: TestClient[Any, Any]) -> None:
        width, height = given
        async with client.ws_connect(f"/ws?width={width}&height={height}") as websocket:
            assert await received(websocket) == list(size)
            await websocket.send_json(["resize", {"width": width, "height": height}])
            assert await received(websocket) == {
                "type": "resize",
                "width": size[0],
                "height": size[1],
            }

    assert terminal_size(*given) == size
    run(test)


@pytest.mark.parametrize(
    "message",
    [
        "{",
        "[" * 50_000,
        "[]",
        "7",
        '["stdin"]',
        '["stdin", 7]',
        '["resize", {"width": "x", "height": 1}]',
        '["resize", {"width": 1e3, "height": 1}]',
        '["resize", []]',
        '["ping", [[[]]]]',
        '["unknown"]',
    ],
)
def test_a_message_of_another_form_ends_the_session_only(
    message: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(client: TestClient[Any, Any]) -> None:
        async with client.ws_connect("/ws") as other, client.ws_connect("/ws") as websocket:
            await received(other)
            await received(websocket)
            await websocket.send_str(message)
            closed = await websocket.receive()
            assert (closed.type, closed.data) == (WSMsgType.CLOSE, WSCloseCode.POLICY_VIOLATION)
            await other.send_json(["focus"])
            assert await received(other) == {"type": "focus"}
            await other.send_json(["ping", "7"])
            assert await other.receive_json() == ["pong", "7"]

    with caplog.at_level(logging.WARNING):
        run(test)
    assert not [record for record in caplog.records if record.exc_info]


def test_the_number_of_sessions_is_limited() -> None:
    async def test(client: TestClient[Any, Any]) -> None:
        websockets = [await client.ws_connect("/ws") for _ in range(MAX_SESSIONS)]
        assert (await client.get("/ws")).status == 503
        await websockets[0].close()
        while (await client.get("/ws")).status == 503:
            await asyncio.sleep(0.01)
        assert (await client.get("/ws")).status == 400, "it is no WebSocket"
        for websocket in websockets[1:]:
            await websocket.close()

    run(test)


def test_the_end_of_the_server_ends_the_sessions() -> None:
    async def test(client: TestClient[Any, Any]) -> None:
        websocket = await client.ws_connect("/ws")
        await received(websocket)
        ending = asyncio.ensure_future(client.server.close())
        closed = await websocket.receive()
        assert (closed.type, closed.data) == (WSMsgType.CLOSE, WSCloseCode.GOING_AWAY)
        await ending

    run(test)
