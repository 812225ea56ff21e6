"""The thread, connection state, early messages and end that all subscribers have in common."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import ClassVar, Generic, Protocol, TypeVar

import zmq

from seqtop.transport import sockets
from seqtop.transport.connection import Connection, ConnectionState
from seqtop.transport.endpoints import check
from seqtop.wire.errors import WireError

MAX_PENDING_MESSAGES = 50_000
"""The limit on the number of messages. The oldest are dropped, which leaves a gap."""

MAX_PENDING_BYTES = 256 * 2**20
"""The limit on the total size of their payloads."""


END = b""
"""The message that ends the thread of a subscriber."""


class ConnectionSink(Protocol):
    """Receives changes of the connection. Called on the subscriber's thread."""

    def connection_changed(self) -> None:
        """Called after `BaseSubscriber.connection` has changed."""


Sink = TypeVar("Sink", bound=ConnectionSink)


class BaseSubscriber(ABC, Generic[Sink]):
    """Follows one publisher on a thread of its own, from `start` to `close`.

    Args:
        endpoint: The publisher's ZeroMQ endpoint.
        sink: Receives what arrives, on the subscriber's thread.

    Attributes:
        connection: The state of the connection, with counts of messages and errors.

    Raises:
        EndpointError: The endpoint is malformed.
    """

    THREAD_NAME: ClassVar[str]

    def __init__(self, endpoint: str, sink: Sink) -> None:
        self.connection = Connection(check(endpoint))
        self._sink = sink
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._thread = threading.Thread(target=self._run, name=self.THREAD_NAME, daemon=True)

    def start(self) -> None:
        """Opens the sockets and starts the thread."""
        self._open()
        self._wake_receiver, self._wake_sender = sockets.wake_pair(self._context)
        self._thread.start()

    def close(self) -> None:
        """Stops receiving, and returns when the thread has ended."""
        if self._thread.is_alive():
            self._wake_sender.send(END)
            self._thread.join()
            self._wake_sender.close()
        sockets.terminate(self._context)

    @abstractmethod
    def _open(self) -> None:
        """Creates and connects the sockets."""

    @abstractmethod
    def _receive_until_woken(self) -> None:
        """Receives until `_wake_receiver` gets `END`, then closes the sockets."""

    def _run(self) -> None:
        try:
            self._receive_until_woken()
        except Exception as error:
            # The display must not pass for current when nothing is received any more.
            self._set_state(
                ConnectionState.LOST,
                f"seqtop has failed and no longer follows the engine: {error!r}; please report it",
            )
            raise
        finally:
            # The sink refers to this subscriber. Without this line only the garbage collector
            # would free the two and all that the sink holds.
            del self._sink

    def _report_error(self, error: WireError) -> None:
        self.connection.num_errors += 1
        self.connection.last_error = str(error)
        self._sink.connection_changed()

    def _set_state(self, state: ConnectionState, detail: str = "") -> None:
        self.connection.state = state
        self.connection.detail = detail
        self._sink.connection_changed()


class _HasPayload(Protocol):
    @property
    def payload(self) -> bytes: ...


_Message = TypeVar("_Message", bound=_HasPayload)


class PendingMessages(Generic[_Message]):
    """A bounded buffer for messages that arrive before older ones: the newest, in order."""

    def __init__(self) -> None:
        self._messages: deque[_Message] = deque()
        self._num_bytes = 0

    def add(self, message: _Message) -> None:
        """Adds a message, and drops the oldest ones that are over the limits."""
        self._messages.append(message)
        self._num_bytes += len(message.payload)
        while len(self._messages) > MAX_PENDING_MESSAGES or self._num_bytes > MAX_PENDING_BYTES:
            self._num_bytes -= len(self._messages.popleft().payload)

    def take(self) -> list[_Message]:
        """Removes and returns all messages."""
        messages = list(self._messages)
        self._messages.clear()
        self._num_bytes = 0
        return messages
