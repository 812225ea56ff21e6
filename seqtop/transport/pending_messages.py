"""A bounded buffer for messages that arrive before older ones."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

MAX_PENDING_MESSAGES = 50_000
"""The limit on the number of messages. The oldest are dropped, which leaves a gap."""

MAX_PENDING_BYTES = 256 * 2**20
"""The limit on the total size of their payloads."""


class _HasPayload(Protocol):
    @property
    def payload(self) -> bytes: ...


_Message = TypeVar("_Message", bound=_HasPayload)


class PendingMessages(Generic[_Message]):
    """The newest messages in order of arrival, up to a number and a size."""

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
