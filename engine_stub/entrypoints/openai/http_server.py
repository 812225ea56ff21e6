"""Runs the HTTP application on a thread of its own."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
from typing import Any

import uvicorn

from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.openai.app import ServedModel, make_app
from engine_stub.entrypoints.openai.bridge import Bridge
from engine_stub.entrypoints.openai.connections import LimitedProtocol
from engine_stub.failure_log import SECONDS_BETWEEN_TRACEBACKS
from seqtop.process import descriptors

_GRACE_SECONDS = 2
_MAX_CONNECTIONS = 512
"""Connections at once, each of which holds up to a body of 1 MiB."""
_BACKLOG = 128
"""Connections that wait for the server, which accepts all of them at once."""
_WANTED_DESCRIPTORS = 4_096
"""The file descriptors that the process may have open, if the system lets it raise its limit."""


class HttpServer:
    """An HTTP server that listens at ``host:port`` until `close`; a context manager.

    Attributes:
        bridge: The source of requests, for `EngineServer`.
        url: The base URL of the API.

    Args:
        address: The address to listen at, ``host:port``.
        engine: The engine; only its tokenizer is used here.
        model: The description of the model.
        insecure: Whether other machines may connect, with any Host header.

    Raises:
        OSError: The address cannot be bound.
    """

    def __init__(
        self, address: str, engine: LLMEngine, model: ServedModel, *, insecure: bool = False
    ) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, int(port)), family=family)
        self.bridge = Bridge()
        self.url = f"http://{address}/v1"
        names = ["*"] if insecure else ["localhost", "127.0.0.1", "[::1]", host]
        app = make_app(self.bridge, model, engine.tokenizer, allowed_hosts=names)
        limit = max_connections()
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=LimitedProtocol,
                lifespan="off",
                ws="none",
                log_level="error",
                access_log=False,
                backlog=min(_BACKLOG, limit),
                limit_concurrency=limit,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._run(),), name="engine-http", daemon=True
        )
        self._thread.start()

    async def _run(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_ErrorLog())
        await self._server.serve([self._socket])

    def close(self) -> None:
        """Ends all requests with an error, and stops listening; call it after the last step."""
        self.bridge.close()
        self._server.should_exit = True
        self._thread.join(timeout=2 * _GRACE_SECONDS)
        self._socket.close()

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ErrorLog:
    """Logs errors of an event loop once in a while, such as connections that it cannot accept."""

    def __init__(self) -> None:
        self._logged_at = -math.inf

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if loop.time() - self._logged_at >= SECONDS_BETWEEN_TRACEBACKS:
            self._logged_at = loop.time()
            loop.default_exception_handler(context)


def max_connections() -> int:
    """Returns how many connections leave descriptors to the rest of the process.

    With as many that are being accepted, these are two thirds. Raises the process's limit of
    descriptors first, if that is possible.
    """
    most = descriptors.raise_limit(_WANTED_DESCRIPTORS)
    return _MAX_CONNECTIONS if most == math.inf else min(_MAX_CONNECTIONS, max(int(most) // 3, 1))
