"""The lock, connection and lifetime that the sessions of all kinds of viewers have in common."""

from __future__ import annotations

import threading
from typing import Any, Self

from seqtop.process.observable import Observable
from seqtop.transport.base_subscriber import BaseSubscriber
from seqtop.transport.connection import Connection, ConnectionState


class BaseSession(Observable):
    """Follows one publisher from `start` to `close`; a context manager does both.

    Its version grows with every change of the connection, or of the state that a subclass keeps.
    """

    _subscriber: BaseSubscriber[Any]
    """The subscriber, whose sink is the session. A subclass creates it."""

    def __init__(self) -> None:
        super().__init__()
        self.name = ""
        """The name of the publisher where it was found; empty if it was given by its endpoint."""
        self.lock = threading.RLock()
        """Held while an event is applied; hold it while reading the state."""

    @property
    def connection(self) -> Connection:
        """The state of the connection."""
        return self._subscriber.connection

    def start(self) -> None:
        """Starts to receive, on the subscriber's thread."""
        self._subscriber.start()

    def close(self) -> None:
        """Stops receiving; returns when the subscriber's thread has ended."""
        self._subscriber.close()

    def wait_for(self, *states: ConnectionState, timeout: float) -> bool:
        """Waits up to `timeout` seconds for one of `states`; returns whether it was reached."""
        return self.wait_until(lambda: self.connection.state in states, timeout)

    def connection_changed(self) -> None:
        """Wakes the threads that wait for a connection state. Called by the subscriber."""
        self.changed()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
