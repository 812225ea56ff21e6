"""A textual-serve server for one command line.

textual-serve starts the app for each opened page and connects its terminal with a WebSocket. It has
no authentication. Added here: requests from pages of other sites, which a browser lets connect to
this machine, are refused, and no font is loaded from another server.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from textual_serve.server import Server

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AppServer(Server):
    """A server of the app that a command line starts.

    Args:
        command: A command line for the shell.
        host: The address to listen on.
        port: The port to listen on.
        host_names: The accepted values of the Host header; empty for any.
    """

    def __init__(self, command: str, host: str, port: int, *, host_names: frozenset[str]) -> None:
        super().__init__(
            command, host=host, port=port, title="seqtop", templates_path=Path(__file__).parent
        )
        self._host_names = host_names

    def initialize_logging(self) -> None:
        """Logs warnings only."""
        logging.basicConfig(level=logging.WARNING, format="seqtop: %(message)s")

    async def on_startup(self, app: web.Application) -> None:
        """Prints the address of the page."""
        self.console.print(f"seqtop: open {self.public_url} ; Ctrl-C ends it", highlight=False)

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._check_origin)
        return app

    @web.middleware
    async def _check_origin(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuses requests from pages of other sites, and DNS rebinding."""
        name = urlsplit(f"//{request.host}").hostname
        origin = request.headers.get("Origin")
        if self._host_names and name not in self._host_names:
            raise web.HTTPForbidden(text="this server has another name")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise web.HTTPForbidden(text="the request comes from another site's page")
        return await handler(request)
