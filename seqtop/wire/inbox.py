"""What the engine's thread hands over to the publisher's, in some microseconds.

A deque is safe between two threads. The publisher's waits for sockets, so there is one to wake it
by, which is written to only if it sleeps.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from typing import Final, TypeAlias

Item: TypeAlias = tuple[bytes, ...]
"""What it is, one of the names below, and what belongs to it."""

EVENT: Final = b"E"
"""Followed by an encoded event."""
IN_FLIGHT: Final = b"I"
"""Followed by an encoded `InFlight`: for the mirror, not for the stream."""
DROPPED: Final = b"D"
"""Followed by how many events were dropped here, in ASCII digits."""
REPLY: Final = b"R"
"""Followed by a viewer's identity and an encoded reply."""
END: Final = b"."


class QueueFullError(Exception):
    """There is no room for another message, or nobody to take it any more."""


class Inbox:
    """A queue that is never waited for on one side, and polled with sockets on the other.

    Args:
        max_items: How many may wait.
    """

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._items: deque[Item] = deque()
        self._asleep = False
        self._has_ended = False
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)

    # For the engine's thread.

    def put(self, *item: bytes) -> None:
        """Add an item; raises `QueueFullError`."""
        if self._has_ended:
            raise QueueFullError("the publisher has been closed")
        if len(self._items) >= self._max_items:
            raise QueueFullError(f"{self._max_items:,} messages wait to be sent already")
        self._items.append(item)
        if self._asleep:
            self._asleep = False
            with contextlib.suppress(OSError):  # full of older calls to wake up, or closed
                self._wake.send(b"\0")

    def end(self) -> None:
        """Add the last item, for which there is always room."""
        self._has_ended = True
        self._items.append((END,))
        self._asleep = False
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    # For the publisher's thread.

    def fileno(self) -> int:
        """What to poll for reading."""
        return self._woken.fileno()

    def take(self) -> Item | None:
        """The next item, if there is one."""
        return self._items.popleft() if self._items else None

    def may_sleep(self) -> bool:
        """Whether there is nothing to take; then whatever comes wakes who polls."""
        # In this order: what is put in between is seen here, or sees that a call is wanted.
        self._asleep = True
        if self._items:
            self._asleep = False
            return False
        return True

    def awake(self, *, was_woken: bool) -> None:
        """Take note that polling has ended, by a call or otherwise."""
        self._asleep = False
        if was_woken:
            with contextlib.suppress(OSError):
                self._woken.recv(64)

    def close(self) -> None:
        self._woken.close()
        self._wake.close()
