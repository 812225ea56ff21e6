"""The client of the replay socket of a publisher of KV-cache events.

The request is the number of the first requested message. The publisher's ROUTER socket replies with
all messages from there on that it still has, then with an end marker. Each request has a socket of
its own, so that a late reply is never taken for that to another request.
"""

from __future__ import annotations

import time
from enum import Enum

import zmq

from seqtop.kv import messages
from seqtop.kv.messages import KvMessage
from seqtop.wire.errors import WireError

SILENCE_SECONDS = 3.0
"""The longest pause in a reply."""

MAX_SECONDS = 60.0
"""The longest duration of a reply."""

MAX_REPLAYED = 1_000_000
"""The largest number of messages in a reply. vLLM stores 10,000 by default."""

_MAX_UNREAD_MESSAGES = 20_000
"""Messages that may wait here (`ZMQ_RCVHWM`). Older publishers drop what they cannot send."""


class ReplayEnded(Enum):
    """The way a reply ended. The value is a clause for the user."""

    DONE = "done"
    SILENT = "the replay endpoint does not answer"
    ENDLESS = "the reply of the replay endpoint does not end"


class ReplayClient:
    """One replay request and its reply.

    Args:
        context: The ZeroMQ context for the socket.
        endpoint: The endpoint of the replay socket.
        first: The number of the first message to request.

    Attributes:
        socket: A socket that is readable when more of the reply has arrived.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, first: int) -> None:
        self._num_received = 0
        self._requested_at = self._received_at = time.monotonic()
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvhwm = _MAX_UNREAD_MESSAGES
        self.socket.maxmsgsize = messages.MAX_MESSAGE_BYTES
        self.socket.connect(endpoint)
        self.socket.send_multipart(messages.replay_request(first))

    def receive(self) -> KvMessage | ReplayEnded | WireError | None:
        """Returns a message, the end, the error of a malformed message, or `None` if none came."""
        try:
            parts = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            if time.monotonic() - self._received_at > SILENCE_SECONDS:
                return ReplayEnded.SILENT
            return None
        self._received_at = time.monotonic()
        self._num_received += 1
        if (
            self._num_received > MAX_REPLAYED
            or self._received_at - self._requested_at > MAX_SECONDS
        ):
            return ReplayEnded.ENDLESS
        try:
            message = messages.unpack(parts[1:] if parts[:1] == [b""] else parts)
        except WireError as error:
            return error
        return ReplayEnded.DONE if message.number == messages.END_OF_REPLAY else message

    def close(self) -> None:
        """Closes the socket."""
        self.socket.close()
