"""A textual-serve server for one command line.

textual-serve starts the app for each opened page and connects its terminal with a WebSocket. It has
no authentication. Added here: requests from pages of other sites, which a browser lets connect to
this machine, are refused; the size of a terminal and the number of sessions are limited; a message
of another form ends the session without a traceback; and no font is loaded from another server.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import WSCloseCode, WSMsgType, web
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

MAX_WIDTH: Final = 1000
"""The most columns of a terminal. An app's memory grows with the size."""

MAX_HEIGHT: Final = 400
"""The most lines of a terminal."""

MAX_SESSIONS: Final = 16
"""The most sessions at a time. Each is a process."""

_CLOSING_SECONDS: Final = 2.0

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AppServer(Server):
    """A server of the app that a command line starts.

    Args:
        command: A command line for the shell.
        host: The address to listen on.
        port: The port to listen on.
        host_names: The accepted values of the Host header; empty for any.
        title: The title of the page.
    """

    def __init__(
        self,
        command: str,
        host: str,
        port: int,
        *,
        host_names: frozenset[str],
        title: str = "seqtop",
    ) -> None:
        super().__init__(
            command, host=host, port=port, title=title, templates_path=Path(__file__).parent
        )
        self._host_names = host_names
        self._num_sessions = 0
        self._websockets: set[web.WebSocketResponse] = set()

    def initialize_logging(self) -> None:
        """Logs warnings only."""
        logging.basicConfig(level=logging.WARNING, format="seqtop: %(message)s")

    async def on_startup(self, app: web.Application) -> None:
        """Prints the address of the page."""
        self.console.print(f"seqtop: open {self.public_url} ; Ctrl-C ends it", highlight=False)

    async def on_shutdown(self, app: web.Application) -> None:
        """Ends all sessions. The server would wait a minute for them to end by themselves."""
        closing = [
            asyncio.ensure_future(websocket.close(code=WSCloseCode.GOING_AWAY))
            for websocket in self._websockets
        ]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSING_SECONDS)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Runs a session, unless there are `MAX_SESSIONS` already."""
        if self._num_sessions >= MAX_SESSIONS:
            raise web.HTTPServiceUnavailable(text=f"there are {MAX_SESSIONS} sessions already")
        if not web.WebSocketResponse().can_prepare(request):
            raise web.HTTPBadRequest(text="a WebSocket connection is expected")
        self._num_sessions += 1
        try:
            query = request.rel_url.query
            width, height = terminal_size(
                to_int(query.get("width", ""), 80), to_int(query.get("height", ""), 24)
            )
            url = request.rel_url.update_query(width=width, height=height)
            return await super().handle_websocket(request.clone(rel_url=url))
        finally:
            self._num_sessions -= 1

    async def _process_messages(
        self, websocket: web.WebSocketResponse, app_service: AppService
    ) -> None:
        """Passes a browser's messages to the app; one of another form ends the session."""
        self._websockets.add(websocket)
        try:
            async for message in websocket:
                if message.type is WSMsgType.TEXT and not await self._process(
                    message.data, websocket, app_service
                ):
                    await websocket.close(code=WSCloseCode.POLICY_VIOLATION)
        finally:
            self._websockets.discard(websocket)

    async def _process(
        self, text: str, websocket: web.WebSocketResponse, app_service: AppService
    ) -> bool:
        """Processes a message; returns False if it is malformed."""
        try:
            message: Any = json.loads(text)
        except (ValueError, RecursionError):
            return False
        match message:
            case ["stdin", str(keys)]:
                await app_service.send_bytes(keys.encode(errors="replace"))
            case ["resize", {"width": int(width), "height": int(height)}]:
                await app_service.set_terminal_size(*terminal_size(width, height))
            case ["ping", (str() | int() | float() | None) as data]:
                await websocket.send_json(["pong", data])
            case ["blur", *_]:
                await app_service.blur()
            case ["focus", *_]:
                await app_service.focus()
            case _:
                return False
        return True

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self._check_origin)
        return app

    @web.middleware
    async def _check_origin(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Refuses requests from pages of other sites, and DNS rebinding."""
        origin = request.headers.get("Origin")
        try:
            name = urlsplit(f"//{request.host}").hostname
            site = None if origin is None else urlsplit(origin).netloc
        except ValueError as error:  # such as an IPv6 address that does not end
            raise web.HTTPBadRequest(text="the Host or the Origin is malformed") from error
        if self._host_names and name not in self._host_names:
            raise web.HTTPForbidden(text="this server has another name")
        if site is not None and site != request.host:
            raise web.HTTPForbidden(text="the request comes from another site's page")
        return await handler(request)


def terminal_size(width: int, height: int) -> tuple[int, int]:
    """Returns the size that a terminal gets that a browser wants to have `width` and `height`."""
    return min(max(width, 1), MAX_WIDTH), min(max(height, 1), MAX_HEIGHT)
