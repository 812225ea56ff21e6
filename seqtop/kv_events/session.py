"""A viewer's session with one publisher of KV-cache events: the thread, the cache and its lock."""

from __future__ import annotations

import threading
import time

from seqtop.connection import Connection, ConnectionState, UnreachableError
from seqtop.kv_events.cache import DEFAULT_MAX_BLOCKS, KvCache
from seqtop.kv_events.messages import EventBatch
from seqtop.kv_events.subscriber import KvSubscriber
from seqtop.observable import Observable


class KvSession(Observable):
    """Follows the publisher at `endpoint` from `start` to `close`; a context manager does both.

    Args:
        endpoint: Where it publishes.
        replay: Endpoint that replays earlier messages, if there is one.
        topic: Prefix of the topics to subscribe to.
        max_blocks: Cells to keep.

    Raises:
        EndpointError: an endpoint is malformed.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        replay: str | None = None,
        topic: str = "",
        max_blocks: int = DEFAULT_MAX_BLOCKS,
    ) -> None:
        super().__init__()
        self.lock = threading.RLock()
        """Held while an event is applied; hold it while reading `cache`."""
        self.cache = KvCache(max_blocks=max_blocks)
        self.has_replay = replay is not None
        self._subscriber = KvSubscriber(endpoint, self, replay=replay, topic=topic)

    @property
    def link(self) -> Connection:
        """State of the connection."""
        return self._subscriber.link

    @property
    def now(self) -> float:
        """Epoch seconds, never before the engine's last message; its clock is taken to agree with
        this machine's, as replayed messages are no newer for arriving only now."""
        return max(time.time(), self.cache.time)

    def start(self) -> None:
        self._subscriber.start()

    def close(self) -> None:
        self._subscriber.close()

    def wait_for(self, *states: ConnectionState, timeout: float) -> bool:
        """Waits up to `timeout` seconds for the link to be in one of `states`."""
        return self.wait_until(lambda: self.link.state in states, timeout)

    def await_publisher(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for the connection and the first replay.

        Raises:
            UnreachableError: Nothing publishes there, or it publishes something else.
        """
        if not self.wait_for(ConnectionState.LIVE, ConnectionState.INCOMPATIBLE, timeout=timeout):
            raise UnreachableError(
                f"nothing publishes at {self.link.endpoint}, or not within {timeout:g} s;"
                " is the engine running, with KV-cache events turned on?"
            )
        if self.link.state is ConnectionState.INCOMPATIBLE:
            raise UnreachableError(self.link.detail)

    # The subscriber calls these on its own thread.

    def apply(self, batch: EventBatch) -> None:
        with self.lock:
            self.cache.apply(batch)
            self.changed()

    def missed(self, why: str) -> None:
        with self.lock:
            self.cache.miss(why)
            self.changed()

    def restarted(self) -> None:
        with self.lock:
            self.cache.restart()
            self.changed()

    def link_changed(self) -> None:
        self.changed()

    def __enter__(self) -> KvSession:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
