"""The ways to be told of changes of an engine's state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from seqtop.state import EngineState
from seqtop.wire.messages import Event


class Listener(Protocol):
    """Told of everything that happens to a session's state, on the thread that makes it happen.

    Called while the session's lock is held, so it is to be quick, and never to raise.
    """

    def append(self, number: int, payload: bytes, event: Event, state: EngineState) -> None:
        """Message `number`, decoded to `event`, has just been applied to `state`."""

    def restore(self, incarnation: str, number: int, state: EngineState) -> None:
        """The state is now `state`, which contains everything up to message `number`."""


Watcher: TypeAlias = Callable[[EngineState, Iterable[int] | None], object]
"""Told of each change of a source's state, and of the sequences that it touched, or `None` for all.

Called as a `Listener` is. On the thread that has just changed them, they are at hand: looking at
each again from another thread later takes several times as long."""
