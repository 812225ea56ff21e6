"""Why a connection never comes about: what ZeroMQ tells of failed handshakes, as sentences."""

from __future__ import annotations

import zmq
from zmq.utils.monitor import recv_monitor_message

_FAILURES_TO_BELIEVE = 3
"""A connection that ends in mid-handshake may be an engine that is just being stopped."""

_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)


class HandshakeWatch:
    """Follows the connections of `socket`, from before it connects.

    Attributes:
        monitor: Readable when there is news; `refusal` reads it.
    """

    def __init__(self, socket: zmq.Socket[bytes], endpoint: str, *, has_keys: bool) -> None:
        self.monitor = socket.get_monitor_socket(_EVENTS)
        self._socket = socket
        self._endpoint = endpoint
        self._has_keys = has_keys
        self._num_failures = 0

    def refusal(self) -> str | None:
        """Why the engine does not let this viewer in, if that is certain by now."""
        sentence = None
        while self.monitor.poll(0):
            message = recv_monitor_message(self.monitor)
            sentence = self._sentence(message["event"], message["value"]) or sentence
        return sentence

    def close(self) -> None:
        """Before the socket itself."""
        self._socket.disable_monitor()

    def _sentence(self, event: int, value: int) -> str | None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._num_failures = 0
            return None
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            return (
                f"the engine at {self._endpoint} refused this viewer's key; its public half must be"
                " among the engine's --authorized-clients"
            )
        if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            if self._has_keys:
                return f"the engine at {self._endpoint} uses no keys; leave --server-key out"
            return f"the engine at {self._endpoint} expects --server-key and --client-key"
        self._num_failures += 1
        if self._num_failures < _FAILURES_TO_BELIEVE:
            return None
        if self._has_keys:
            return (
                f"what answers at {self._endpoint} does not hold the key of --server-key,"
                " or uses no keys"
            )
        return (
            f"what answers at {self._endpoint} is no engine, or one that expects --server-key and"
            " --client-key"
        )
