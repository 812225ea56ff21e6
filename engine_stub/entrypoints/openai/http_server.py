"""Serves the application on a thread of its own, for as long as the engine runs."""

from __future__ import annotations

import socket
import threading

import uvicorn

from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.openai.app import ServedModel, make_app
from engine_stub.entrypoints.openai.bridge import Bridge

_GRACE_SECONDS = 2


class HttpServer:
    """Listens at ``host:port`` from its construction to `close`; a context manager.

    Attributes:
        bridge: The front door, for `EngineServer`.
        url: Where clients find it.

    Args:
        insecure: Whether other machines may connect, under whatever name.

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
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=_GRACE_SECONDS,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="engine-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End all requests, tell their clients so, and stop listening; once the engine rests."""
        self.bridge.close()
        self._server.should_exit = True
        self._thread.join(timeout=2 * _GRACE_SECONDS)
        self._socket.close()

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
