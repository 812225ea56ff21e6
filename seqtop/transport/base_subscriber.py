"""What subscribers of every kind share: a thread, how the connection stands, and their ends."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

import zmq

from seqtop.connection import Connection, ConnectionState
from seqtop.transport import closing
from seqtop.transport.endpoints import check
from seqtop.transport.wakeup import wake_pair
from seqtop.wire.errors import WireError


class ConnectionSink(Protocol):
    """Who is told, on the follower's thread, that the link has changed."""

    def link_changed(self) -> None: ...


Sink = TypeVar("Sink", bound=ConnectionSink)


class BaseSubscriber(ABC, Generic[Sink]):
    """Follows one publisher on a thread of its own, from `start` to `close`.

    Raises:
        EndpointError: `endpoint` is malformed.
    """

    THREAD_NAME: str

    def __init__(self, endpoint: str, sink: Sink) -> None:
        self.link = Connection(check(endpoint))
        self._sink = sink
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._thread = threading.Thread(target=self._run, name=self.THREAD_NAME, daemon=True)

    def start(self) -> None:
        self._open()
        self._woken, self._wake = wake_pair(self._context)
        self._thread.start()

    def close(self) -> None:
        """Stop receiving, for good; returns when the thread has ended."""
        if self._thread.is_alive():
            self._wake.send(b"")
            self._thread.join()
            self._wake.close()
        closing.end(self._context)

    @abstractmethod
    def _open(self) -> None:
        """Make the sockets, and connect them."""

    @abstractmethod
    def _follow(self) -> None:
        """Receive until `_woken` has something to read, then close the sockets."""

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:
            # Nobody may go on taking what is shown for what is.
            self._show(
                ConnectionState.LOST,
                f"seqtop itself failed, and follows no more: {error!r}; please report it",
            )
            raise
        finally:
            # The sink holds this follower: together they would keep all that the sink knows until
            # the collector comes by, which may be never.
            del self._sink

    def _refused(self, error: WireError) -> None:
        self.link.num_errors += 1
        self.link.last_error = str(error)
        self._sink.link_changed()

    def _show(self, state: ConnectionState, detail: str = "") -> None:
        self.link.state = state
        self.link.detail = detail
        self._sink.link_changed()
