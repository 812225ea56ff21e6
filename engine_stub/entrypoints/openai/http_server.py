"""Runs the HTTP application on a thread of its own."""

from __future__ import annotations

import socket
import threading

import uvicorn

from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.openai.app import ServedModel, make_app
from engine_stub.entrypoints.openai.bridge import Bridge

_GRACE_SECONDS = 2
_MAX_CONNECTIONS = 512
"""Connections at once. Each holds up to a body of 1 MiB; more are answered with status 503."""


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
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                lifespan="off",
                ws="none",
                log_level="error",
                access_log=False,
                limit_concurrency=_MAX_CONNECTIONS,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="engine-http", daemon=True
        )
        self._thread.start()

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
