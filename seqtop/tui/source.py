"""The interface of the engines and recordings that the app shows."""

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from seqtop.history.memory_store import MemoryStore
from seqtop.live.playback import Playback
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.state.finished import FinishedMemory
from seqtop.state.listener import Listener
from seqtop.transport.connection import Connection
from seqtop.wire.messages import EngineSummary


class Engine(Protocol):
    """A running engine; `seqtop.live.session.Session` is one."""

    name: str
    """Its name where it was found; empty if it was given by its endpoint."""

    @property
    def state(self) -> EngineState:
        """The state. Read it only while holding `lock`; the object may be replaced at any time."""

    @property
    def lock(self) -> threading.RLock:
        """Held while `state` is written; hold it briefly."""

    @property
    def connection(self) -> Connection:
        """State of the connection."""

    @property
    def finished_memory(self) -> FinishedMemory:
        """The memory of the finished requests in `state`, and its limit."""

    @property
    def history(self) -> MemoryStore:
        """The history. It changes under `lock` and has a lock of its own.

        Take `lock` first.
        """

    @property
    def summary(self) -> EngineSummary | None:
        """The last summary, while the stream is not read and `state` is old; else `None`."""

    def set_subscribed(self, is_subscribed: bool) -> None:
        """Subscribes to the stream, or leaves it and has a summary a second instead."""

    def add_listener(self, listener: Listener) -> None:
        """Calls `listener` with the current state, if there is one, and with each later change."""

    def remove_listener(self, listener: Listener) -> None:
        """Removes a listener that `add_listener` added."""

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Calls `callback` after each change of the state, the time or the connection.

        It is called on the thread that makes the change.
        """

    def submit(self, prompt: str, params: SamplingParams) -> str:
        """Submits a prompt and returns its request id. May block for seconds.

        Raises:
            ControlError: The engine refused or did not answer.
        """

    def abort(self, request_id: str) -> None:
        """Aborts a request. May block for seconds.

        Raises:
            ControlError: The engine refused or did not answer.
        """


Source: TypeAlias = Engine | Playback
"""A running engine or a recording."""


class FoundEngines(Protocol):
    """The engines that a register lists, as they come."""

    def take_new(self) -> Sequence[Engine]:
        """Returns the engines that were found since the last call; the app does not close them."""

    def take_problem(self) -> str:
        """Returns a sentence on what is wrong with the register, once; empty if nothing is."""
