"""Asks a publisher of KV-cache events for messages that have gone by.

The publisher's ROUTER is asked with the number of the first message wanted and answers with all
that it still keeps from there on, then with an end marker. Each question has a socket of its own,
so that a late answer is never taken for that to another.
"""

from __future__ import annotations

import time
from enum import Enum

import zmq

from seqtop.kv_events import messages
from seqtop.kv_events.messages import KvMessage
from seqtop.wire.errors import WireError

PATIENCE_SECONDS = 3.0
"""An answer that does not go on for so long is given up."""

MAX_SECONDS = 60.0
"""One that goes on for longer is, too."""

MAX_REPLAYED = 1_000_000
"""Messages of one answer; vLLM keeps 10,000 unless told otherwise."""

_UNREAD_MESSAGES = 20_000
"""Older publishers drop of an answer what they cannot send at once; so much can wait here."""


class ReplayEnded(Enum):
    DONE = "done"
    SILENT = "the replay endpoint does not answer"
    ENDLESS = "the replay endpoint does not come to an end"


class ReplayClient:
    """One question and its answer.

    Attributes:
        first: Number of the first message that was asked for.
        socket: Readable when there is more of the answer.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, first: int) -> None:
        self.first = first
        self.num_received = 0
        self._asked_at = self._heard_at = time.monotonic()
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvhwm = _UNREAD_MESSAGES
        self.socket.maxmsgsize = messages.MAX_MESSAGE_BYTES
        self.socket.connect(endpoint)
        self.socket.send_multipart(messages.question(first))

    def receive(self) -> KvMessage | ReplayEnded | WireError | None:
        """The next of what has arrived: a message, the end, one that is not right, or nothing."""
        try:
            parts = self.socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            if time.monotonic() - self._heard_at > PATIENCE_SECONDS:
                return ReplayEnded.SILENT
            return None
        self._heard_at = time.monotonic()
        self.num_received += 1
        if self.num_received > MAX_REPLAYED or self._heard_at - self._asked_at > MAX_SECONDS:
            return ReplayEnded.ENDLESS
        try:
            message = messages.unpack(parts[1:] if parts[:1] == [b""] else parts)
        except WireError as error:
            return error
        return ReplayEnded.DONE if message.number == messages.END_OF_REPLAY else message

    def close(self) -> None:
        self.socket.close()
