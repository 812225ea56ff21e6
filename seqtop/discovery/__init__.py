"""Sources of endpoints: registers in which engines are found where they run.

A register is the engines of this machine, a file of targets, the pods of a Kubernetes cluster, or
the actors of a Ray cluster. The packages of the latter two are imported when they are needed.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import NamedTuple

_RETRY_SECONDS = 2.0
"""The time after a failure, until the register is asked again."""


class DiscoveryError(Exception):
    """A register cannot be read. The message is one sentence for the user."""


class Found(NamedTuple):
    """An engine that a register lists."""

    name: str
    """Its name there, by which it is known when it returns at another endpoint. Empty if the
    register has no names: then that is its endpoint."""
    endpoint: str

    @property
    def key(self) -> str:
        """Its identity among the engines of the register."""
        return self.name or self.endpoint


class Discovery(ABC):
    """Follows a register on a thread of its own, from `start` to `close`.

    Args:
        title: The name of the register, for sentences.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.found: tuple[Found, ...] = ()
        """The engines that the register lists now; a change replaces the object."""
        self.problem = ""
        """The reason why `found` may be old, in one sentence; empty if the register answers."""
        self._closing = threading.Event()
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name="seqtop-discovery", daemon=True)

    def start(self, timeout: float = 15.0) -> None:
        """Starts to follow the register, and waits for its first answer.

        Raises:
            DiscoveryError: It cannot be read, or did not answer within `timeout` seconds.
        """
        self._thread.start()
        answered = self._answered.wait(timeout)
        if self.problem or not answered:
            self.close()
            raise DiscoveryError(self.problem or f"{self.title} did not answer in {timeout:g} s")

    def close(self) -> None:
        """Stops to follow the register."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)  # a request may hang; the thread is a daemon

    @abstractmethod
    def explain_none(self) -> str:
        """Returns a sentence on why no engine was found."""

    @abstractmethod
    def _follow(self) -> None:
        """Calls `_report` for each answer, until `_closing` is set.

        Raises:
            DiscoveryError: The register cannot be read; it is asked again later.
        """

    def _report(self, found: Iterable[Found]) -> None:
        """Stores what the register lists."""
        listed = tuple({engine.key: engine for engine in found}.values())
        if listed != self.found:
            self.found = listed
        self.problem = ""
        self._answered.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._follow()
            except DiscoveryError as error:
                self.problem = str(error)
            except Exception as error:  # noqa: BLE001 (a client may raise anything)
                self.problem = f"{self.title} cannot be read: {type(error).__name__}: {error}"
            self._answered.set()
            self._closing.wait(_RETRY_SECONDS)


class PolledDiscovery(Discovery):
    """Reads a register that does not tell its changes again and again."""

    _SECONDS = 1.0
    """The time between two readings."""

    @abstractmethod
    def _find(self) -> Iterable[Found]:
        """Returns what the register lists now.

        Raises:
            DiscoveryError: It cannot be read.
        """

    def _follow(self) -> None:
        while not self._closing.is_set():
            self._report(self._find())
            self._closing.wait(self._SECONDS)
