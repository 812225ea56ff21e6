"""A viewer's session with one publisher of KV-cache events."""

from __future__ import annotations

import time

from seqtop.kv.cache import KvCache
from seqtop.kv.messages import EventBatch
from seqtop.kv.subscriber import KvSubscriber
from seqtop.live.base_session import BaseSession
from seqtop.transport.connection import ConnectionState, UnreachableError


class KvSession(BaseSession):
    """Follows a publisher, and keeps the prefix cache that its events describe.

    Args:
        endpoint: The publisher's ZeroMQ endpoint.
        replay: The endpoint of the publisher's replay socket, if it has one.
        topic: The prefix of the topics to receive.

    Attributes:
        cache: The prefix cache according to the events.
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
        self.cache = KvCache()
        self.has_replay = replay is not None
        self._subscriber = KvSubscriber(endpoint, self, replay=replay, topic=topic)

    @property
    def now(self) -> float:
        """The time in seconds since the epoch, not before the engine's last message.

        This assumes that the engine's clock agrees with this machine's. The time of arrival would
        be wrong for replayed messages.
        """
        return max(time.time(), self.cache.time)

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
        """Updates the cache by a batch. Called on the subscriber's thread, as the next two."""
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
