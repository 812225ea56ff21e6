"""A viewer's session with one publisher of KV-cache events."""

from __future__ import annotations

import threading
import time

from seqtop.kv.cache import KvCache
from seqtop.kv.messages import EventBatch
from seqtop.kv.subscriber import KvSubscriber
from seqtop.live.connection import Connection, ConnectionState, UnreachableError
from seqtop.process.observable import Observable


class KvSession(Observable):
    """Follows a publisher from `start` to `close`; a context manager does both.

    Args:
        endpoint: The publisher's ZeroMQ endpoint.
        replay: The endpoint of the publisher's replay socket, if it has one.
        topic: The prefix of the topics to receive.

    Attributes:
        lock: Held while an event is applied. Hold it while reading `cache`.
        cache: The prefix cache according to the events.
        version: A number that grows with each change of `cache` or `connection`.
        has_replay: Whether the publisher has a replay socket.

    Raises:
        EndpointError: An endpoint is malformed.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        replay: str | None = None,
        topic: str = "",
    ) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.cache = KvCache()
        self.has_replay = replay is not None
        self._subscriber = KvSubscriber(endpoint, self, replay=replay, topic=topic)

    @property
    def connection(self) -> Connection:
        """The state of the connection."""
        return self._subscriber.connection

    @property
    def now(self) -> float:
        """The time in seconds since the epoch, not before the engine's last message.

        This assumes that the engine's clock agrees with this machine's. The time of arrival would
        be wrong for replayed messages.
        """
        return max(time.time(), self.cache.time)

    def start(self) -> None:
        """Starts to receive."""
        self._subscriber.start()

    def close(self) -> None:
        """Stops receiving."""
        self._subscriber.close()

    def wait_for(self, *states: ConnectionState, timeout: float) -> bool:
        """Waits up to `timeout` seconds for a connection state; returns whether it was reached."""
        return self.wait_until(lambda: self.connection.state in states, timeout)

    def await_publisher(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for a connection and the first replay.

        Raises:
            UnreachableError: No publisher answers, or it publishes something else.
        """
        if not self.wait_for(ConnectionState.LIVE, ConnectionState.INCOMPATIBLE, timeout=timeout):
            raise UnreachableError(
                f"no event from {self.connection.endpoint} within {timeout:g} s;"
                " is the engine running, with KV-cache events turned on?"
            )
        if self.connection.state is ConnectionState.INCOMPATIBLE:
            raise UnreachableError(self.connection.detail)

    def apply(self, batch: EventBatch) -> None:
        """Updates the cache by a batch. Called on the subscriber's thread, as the next three."""
        with self.lock:
            self.cache.apply(batch)
            self.changed()

    def missed(self, reason: str) -> None:
        """Marks the cache as incomplete."""
        with self.lock:
            self.cache.mark_gap(reason)
            self.changed()

    def restarted(self) -> None:
        """Empties the cache."""
        with self.lock:
            self.cache.restart()
            self.changed()

    def connection_changed(self) -> None:
        """Wakes the threads that wait for a connection state."""
        self.changed()

    def __enter__(self) -> KvSession:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
