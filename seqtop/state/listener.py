"""Changes of an engine's state, as a session reports them to its listeners."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from seqtop.state import EngineState
from seqtop.wire.messages import Event


class StateChange(NamedTuple):
    """One change of an engine's state: an event was applied, or a snapshot replaced the state."""

    state: EngineState
    """The state after the change."""
    touched: Iterable[int] | None
    """Ids of the sequences that changed, which can be iterated repeatedly; `None` if the state was
    replaced."""
    event: Event | None = None
    """The event that was applied; `None` if the state was replaced or a recording was moved."""
    payload: bytes = b""
    """The event, encoded."""
    sequence_number: int = -1
    """Number of the last message that `state` contains."""
    incarnation: str = ""
    """The engine's incarnation, given with a new state."""


Listener: TypeAlias = Callable[[StateChange], object]
"""Called with each change, on the thread that makes it and under the source's lock.

It has to return quickly and must not raise."""
