"""Failed ZeroMQ handshakes, explained in sentences for the user."""

from __future__ import annotations

import time
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

_MIN_FAILURES: Final = 3
"""One connection that ends during the handshake may be an engine that is just stopping."""

_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class HandshakeMonitor:
    """Monitors the handshakes of a socket. Created before the socket connects.

    Args:
        socket: The socket to monitor.
        endpoint: The endpoint that it connects to, for the sentences.
        has_keys: True if the viewer has CurveZMQ keys.

    Attributes:
        socket: A socket that is readable when there are events for `refusal`.
        endpoint: The endpoint that the monitored socket connects to; it may change.
        succeeded_at: The time of the last successful handshake, by the monotonic clock; `None`
            before.
    """

    def __init__(self, socket: zmq.Socket[bytes], endpoint: str, *, has_keys: bool) -> None:
        self.socket = socket.get_monitor_socket(_EVENTS)
        self._monitored = socket
        self.endpoint = endpoint
        self._has_keys = has_keys
        self._num_failures = 0
        self.succeeded_at: float | None = None

    def refusal(self) -> str | None:
        """Reads all events; returns the reason for a refusal, once it is certain."""
        reason = None
        while self.socket.poll(0):
            message = recv_monitor_message(self.socket)
            reason = self._explain(message["event"], message["value"]) or reason
        return reason

    def close(self) -> None:
        """Stops monitoring. Called before the monitored socket is closed."""
        self._monitored.disable_monitor()

    def _explain(self, event: int, value: int) -> str | None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._num_failures = 0
            self.succeeded_at = time.monotonic()
            return None
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return (
                f"the engine at {self.endpoint} refused this viewer's key; its public half must be"
                " among the engine's --authorized-clients"
            )
        if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            if self._has_keys:
                return f"the engine at {self.endpoint} uses no keys; leave --server-key out"
            return f"the engine at {self.endpoint} expects --server-key and --client-key"
        self._num_failures += 1
        if self._num_failures < _MIN_FAILURES:
            return None
        if self._has_keys:
            return (
                f"the publisher at {self.endpoint} does not hold the key of --server-key,"
                " or uses no keys"
            )
        return (
            f"the publisher at {self.endpoint} is not an engine, or expects --server-key and"
            " --client-key"
        )
