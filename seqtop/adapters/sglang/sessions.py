"""The pages that streaming sessions keep between their requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from seqtop.adapters.sglang.requests import Request


class Held(NamedTuple):
    """A request that has ended, and whose pages its session keeps."""

    req: Any
    request: Request
    kv: Any
    """SGLang's record of the pages."""
    status: str


class Sessions:
    """The sessions of one scheduler that keep pages of a request that has ended.

    Args:
        scheduler: SGLang's scheduler.
    """

    def __init__(self, scheduler: Any) -> None:
        session = getattr(scheduler.tree_cache, "session", None)
        self._slots: dict[str, Any] = session.slots if session is not None else {}
        self._held: dict[str, Held] = {}
        """By the id of the session."""
        self._released: list[str] = []

    def __iter__(self) -> Iterator[Held]:
        """Yields what is held."""
        return iter(self._held.values())

    def record(self, req: Any) -> Any:
        """Returns the record that the session of a request keeps; `None` if it keeps none."""
        session = getattr(req, "session", None)
        if session is None or not session.streaming:
            return None
        slot = self._slots.get(session.session_id)
        return slot.kv if slot is not None and slot.kv.req_pool_idx is not None else None

    def hold(self, held: Held) -> None:
        """Notes the end of a request whose session has a record."""
        self._held[held.req.session.session_id] = held

    def admit(self, req: Any) -> None:
        """Notes that a request runs, which goes on with the pages that its session has kept."""
        if self._held and (session := getattr(req, "session", None)) is not None:
            self._release(session.session_id)

    def take_released(self) -> list[str]:
        """Returns the requests whose pages are no longer held for them, since the last call."""
        for session_id, held in [*self._held.items()]:
            slot = self._slots.get(session_id)
            if slot is None or slot.kv is not held.kv:
                self._release(session_id)
        released, self._released = self._released, []
        return released

    def _release(self, session_id: str) -> None:
        if (held := self._held.pop(session_id, None)) is not None:
            self._released.append(held.request.id)
