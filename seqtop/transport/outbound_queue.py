"""What the engine's thread hands over to the publisher's, in some microseconds.

A deque is safe between two threads. The publisher's waits for sockets, so there is one to wake it
by, which is written to only if it sleeps; if it dozes, only for what is urgent.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from typing import Any, Final, TypeAlias

Item: TypeAlias = tuple[Any, ...]
"""What it is, one of the names below, and what belongs to it."""

EVENT: Final = b"E"
"""Followed by an encoded event."""
LATER: Final = b"L"
"""Followed by what makes an event when it is called, and the bytes that this counts as."""
IN_FLIGHT: Final = b"I"
"""Followed by an encoded `InFlight`: for the mirror, not for the stream."""
DROPPED: Final = b"D"
"""Followed by how many events were dropped here."""
REPLY: Final = b"R"
"""Followed by a viewer's identity and an encoded reply."""
END: Final = b"."

MANY_ITEMS: Final = 256
"""So many are urgent, whatever they are."""


class QueueFullError(Exception):
    """There is no room for another message, or nobody to take it any more."""


class OutboundQueue:
    """A queue that is never waited for on one side, and polled with sockets on the other.

    Args:
        max_items: How many may wait.
    """

    def __init__(self, max_items: int) -> None:
        self._max_items = max_items
        self._items: deque[Item] = deque()
        self._asleep = False
        self._dozing = False
        self._is_urgent = False
        self._has_ended = False
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)

    # For the engine's thread.

    def put(self, *item: Any, is_urgent: bool = True) -> None:
        """Add an item; raises `QueueFullError`.

        Args:
            is_urgent: The publisher's thread may not doze while it waits.
        """
        if self._has_ended:
            raise QueueFullError("the publisher has been closed")
        if len(self._items) >= self._max_items:
            raise QueueFullError(f"{self._max_items:,} messages wait to be sent already")
        self._items.append(item)
        if is_urgent or len(self._items) > MANY_ITEMS:
            self._is_urgent = True
        if self._asleep and (self._is_urgent or not self._dozing):
            self._wake_up()

    def end(self) -> None:
        """Add the last item, for which there is always room."""
        self._has_ended = True
        self._items.append((END,))
        self._is_urgent = True
        self._wake_up()

    def _wake_up(self) -> None:
        self._asleep = False
        with contextlib.suppress(OSError):  # full of older calls to wake up, or closed
            self._wake.send(b"\0")

    # For the publisher's thread.

    def fileno(self) -> int:
        """What to poll for reading."""
        return self._woken.fileno()

    def take(self) -> Item | None:
        """The next item, if there is one."""
        if not self._items:
            # In this order: what is put in between is seen here, or says again that it is urgent.
            self._is_urgent = False
        return self._items.popleft() if self._items else None

    def may_sleep(self) -> bool:
        """Whether there is nothing to take; then whatever comes wakes who polls."""
        self._dozing = False
        # In this order: what is put in between is seen here, or sees that a call is wanted.
        self._asleep = True
        if self._items:
            self._asleep = False
        return self._asleep

    def may_doze(self) -> bool:
        """Whether nothing in here is urgent; then only what is wakes who polls."""
        self._dozing = True
        self._asleep = True  # in this order, likewise
        if self._is_urgent:
            self._asleep = False
        return self._asleep

    def awake(self, *, was_woken: bool) -> None:
        """Take note that polling has ended, by a call or otherwise."""
        self._asleep = False
        if was_woken:
            with contextlib.suppress(OSError):
                self._woken.recv(64)

    def close(self) -> None:
        self._woken.close()
        self._wake.close()
