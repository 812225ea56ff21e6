"""Messages set aside while older ones are awaited: as many as memory may be spent on."""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

MAX_KEPT_MESSAGES = 50_000
"""Beyond it the oldest go, and are a hole."""

MAX_KEPT_BYTES = 256 * 2**20
"""What their payloads may take together."""


class _HasPayload(Protocol):
    @property
    def payload(self) -> bytes: ...


_Message = TypeVar("_Message", bound=_HasPayload)


class PendingMessages(Generic[_Message]):
    """The newest messages, in the order in which they came."""

    def __init__(self) -> None:
        self._messages: deque[_Message] = deque()
        self._num_bytes = 0

    def add(self, message: _Message) -> None:
        self._messages.append(message)
        self._num_bytes += len(message.payload)
        while len(self._messages) > MAX_KEPT_MESSAGES or self._num_bytes > MAX_KEPT_BYTES:
            self._num_bytes -= len(self._messages.popleft().payload)

    def take(self) -> list[_Message]:
        """All of them; none is kept any more."""
        messages = list(self._messages)
        self._messages.clear()
        self._num_bytes = 0
        return messages
