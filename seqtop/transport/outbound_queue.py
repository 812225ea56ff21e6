"""A bounded queue from the engine's thread to the publisher's thread."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from typing import Final, NamedTuple, TypeAlias

from seqtop.wire.messages import Event

_WAKE_UP_BYTES: Final = 4096
"""Wake-up bytes that one read removes."""


class QueuedEvent(NamedTuple):
    """An encoded event for the live stream, and the number of events dropped before it.

    The event itself is `None` if the replica has to decode it.
    """

    payload: bytes
    num_dropped: int = 0
    event: Event | None = None


class QueuedSnapshot(NamedTuple):
    """An encoded `Snapshot` for the replica, and the number of events dropped before it.

    It is not part of the live stream. It is one item: a viewer that got a snapshot between the two
    would have the number after the drop and the state before the repair.
    """

    payload: bytes
    num_dropped: int


class QueuedReply(NamedTuple):
    """An encoded reply to the viewer with a ZeroMQ routing identity."""

    identity: bytes
    payload: bytes


class EndOfStream(NamedTuple):
    """The last item of a queue."""


Item: TypeAlias = QueuedEvent | QueuedSnapshot | QueuedReply | EndOfStream


class QueueFullError(Exception):
    """The queue is full or has been ended."""


class OutboundQueue:
    """A bounded queue whose writer never blocks and whose reader polls it together with sockets.

    A deque is safe between two threads. A byte on a socket pair wakes the reader.

    Args:
        max_items: The number of items that may wait.
    """

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._items: deque[Item] = deque()
        self._has_ended = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def put(self, item: Item) -> None:
        """Adds an item. Called on the engine's thread.

        Raises:
            QueueFullError: The queue is full or has been ended.
        """
        if self._has_ended:
            raise QueueFullError("the publisher has been closed")
        if len(self._items) >= self._max_items:
            raise QueueFullError(f"{self._max_items:,} messages wait to be sent already")
        self._append(item)

    def end(self) -> None:
        """Adds `EndOfStream`, for which there is always room. Called on the engine's thread."""
        self._has_ended = True
        self._append(EndOfStream())

    def _append(self, item: Item) -> None:
        self._items.append(item)
        # The buffer is full of earlier wake-ups, or the reader has closed the queue.
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def __len__(self) -> int:
        """Returns the number of items that wait."""
        return len(self._items)

    def fileno(self) -> int:
        """Returns the file descriptor to poll for reading."""
        return self._reader.fileno()

    def take(self, max_items: int) -> list[Item]:
        """Removes and returns the oldest items. Called on the publisher's thread.

        If items remain afterwards, no further wake-up is due for them.
        """
        # First the wake-ups, then the items: an item added between the two leaves a new wake-up.
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(_WAKE_UP_BYTES)
        return [self._items.popleft() for _ in range(min(max_items, len(self._items)))]

    def close(self) -> None:
        """Closes the socket pair."""
        self._reader.close()
        self._writer.close()
