"""A textual-serve server for one command line: for this machine, and with nothing from elsewhere.

Textual-serve starts the app anew for each page that is opened and carries its terminal over a
WebSocket. It asks nobody who they are; what is added here is that pages of other sites, which a
browser lets connect to this machine, are turned away, and that no font comes from a stranger.
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
    """Serves the app that `command`, a shell's command line, starts.

    Args:
        hosts: Names by which browsers may call this server; empty for any.
    """

    def __init__(self, command: str, host: str, port: int, *, hosts: frozenset[str]) -> None:
        super().__init__(
            command, host=host, port=port, title="seqtop", templates_path=Path(__file__).parent
        )
        self._hosts = hosts

    def initialize_logging(self) -> None:
        logging.basicConfig(level=logging.WARNING, format="seqtop: %(message)s")

    async def on_startup(self, app: web.Application) -> None:
        self.console.print(f"seqtop: open {self.public_url} ; Ctrl-C ends it", highlight=False)

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._turn_strangers_away)
        return app

    @web.middleware
    async def _turn_strangers_away(
        self, request: web.Request, handler: _Handler
    ) -> web.StreamResponse:
        """Refuse what a page of another site has a browser do, under whatever name it found us."""
        name = urlsplit(f"//{request.host}").hostname
        origin = request.headers.get("Origin")
        if self._hosts and name not in self._hosts:
            raise web.HTTPForbidden(text="not the name this server goes by")
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise web.HTTPForbidden(text="not from this server's own page")
        return await handler(request)
