"""Connections of HTTP clients, with limits on what a client may cost.

uvicorn and h11 bound the head of a request and the number of requests at once. What is bounded here
is the rest: connections without a request, bodies in very many pieces, bodies that nobody reads.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import h11
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

from engine_stub.entrypoints.openai.app import MAX_BODY_BYTES

MAX_HEAD_SECONDS: Final = 10.0
"""The longest time without a request: until the head of the first one, or of the next, is there."""
_MAX_HEAD_BYTES: Final = 2**16
_MAX_RAW_BYTES: Final = 2 * MAX_BODY_BYTES
"""The longest body as it is sent, with the sizes and extensions of its chunks."""
_MAX_PIECES: Final = 4_096
"""The most pieces of a body, each of which costs as much time as thousands of bytes. A piece is a
chunk, or what arrives at once."""


class LimitedConnection(h11.Connection):
    """The HTTP of a connection: refuses bodies in many pieces, and ends where an end is unclear.

    A connection is closed after a response if the body of its request was not read, or if the
    request had both a length and chunks (RFC 9112, section 6.3).
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, _MAX_HEAD_BYTES)
        self._num_bytes = 0
        self._num_pieces = 0
        self._has_two_lengths = False

    def receive_data(self, data: bytes) -> None:
        """Adds received bytes."""
        self._num_bytes += len(data)
        super().receive_data(data)

    def next_event(self) -> Any:
        """Returns the next part of a request.

        Raises:
            h11.RemoteProtocolError: The request is malformed, or its body is in too many pieces.
        """
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            self._has_two_lengths = names >= {b"content-length", b"transfer-encoding"}
            self._num_bytes = self._num_pieces = 0
        elif isinstance(event, h11.Data):
            self._num_pieces += 1
        is_too_long = self._num_bytes > _MAX_RAW_BYTES or self._num_pieces > _MAX_PIECES
        if is_too_long and self.their_state is h11.SEND_BODY:
            raise h11.RemoteProtocolError("the body is too long, or in too many pieces")
        return event

    def send(self, event: Any) -> Any:
        """Returns the bytes of a part of a response."""
        is_unclear = self._has_two_lengths or self.their_state is h11.SEND_BODY
        if is_unclear and isinstance(event, h11.Response):
            event = h11.Response(
                status_code=event.status_code,
                headers=[*event.headers, (b"connection", b"close")],
                reason=event.reason,
            )
        return super().send(event)


class LimitedProtocol(H11Protocol):
    """A connection that is closed if its client does not send a request in time.

    If there are more than `limit_concurrency` allows, the one is closed for whose client the server
    has waited longest. So status 503 is sent only if as many requests are being served.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = LimitedConnection()
        # uvicorn counts tasks as well, also those of connections that made room, which end a little
        # later. It would refuse requests for which there is room.
        self._max_connections, self.limit_concurrency = self.limit_concurrency, None
        self._served_app = self.app
        self._waits_since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._await_request()
        if not self._is_full:
            return
        waiting = [
            connection
            for connection in self.connections
            if isinstance(connection, LimitedProtocol) and connection.is_waiting
        ]
        waiting.remove(self)
        if waiting:
            oldest = min(waiting, key=lambda connection: connection._waits_since)
            oldest.transport.abort()
            self.connections.discard(oldest)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops waiting."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def handle_events(self) -> None:
        """Serves requests that have arrived, or refuses them if there are too many connections."""
        self.app = service_unavailable if self._is_full else self._served_app
        super().handle_events()

    def on_response_complete(self) -> None:
        """Begins to wait for the next request, unless it has arrived."""
        self._await_request()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuses a malformed request, or closes the connection if a response has begun."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()

    @property
    def _is_full(self) -> bool:
        most = self._max_connections
        return most is not None and len(self.connections) >= most

    @property
    def is_waiting(self) -> bool:
        """True while the server waits for the client: for a request, or for the rest of one."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _await_request(self) -> None:
        self._waits_since = self.loop.time()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(MAX_HEAD_SECONDS, self._end_wait, self.cycle)

    def _end_wait(self, last_cycle: object) -> None:
        """Closes the connection if there has been no request since `last_cycle`."""
        if self.cycle is last_cycle:
            self.transport.close()
