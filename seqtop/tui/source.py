"""What the app looks at: a state that somebody else keeps up to date."""

import threading
from collections.abc import Callable
from typing import Protocol

from seqtop.connection import Connection
from seqtop.history.timeline import Timeline
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.state.listener import Watcher


class Source(Protocol):
    """One engine, live or recorded. `seqtop.session.Session` is the live one."""

    @property
    def state(self) -> EngineState:
        """Read it only while holding `lock`; another object may take its place any time."""

    @property
    def lock(self) -> threading.RLock:
        """Held by whoever writes `state`; hold it briefly."""

    @property
    def link(self) -> Connection:
        """How the connection stands."""

    @property
    def version(self) -> int:
        """Grows whenever the state, time aside, or the link changed; cheap to ask for."""

    def call_once(self, call: Callable[[], object]) -> None:
        """Have `call`, and nobody who asked before, called once as soon as `version` grows or time
        passes by the engine's clock, on whichever thread makes it."""

    @property
    def history(self) -> Timeline | None:
        """Every moment on record, if any is. It changes under `lock` and has a lock of its own:
        take `lock` first."""

    def drain(self) -> set[int] | None:
        """Ids of the sequences touched since the last call; `None` means everything."""

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` told of every change of the state, on the thread that makes it."""

    def submit(self, prompt: str, params: SamplingParams) -> str:
        """Run a prompt; returns the request id. May block for seconds.

        Raises:
            ControlError: the engine refused or did not answer.
        """

    def abort(self, request_id: str) -> None:
        """End a request. May block for seconds.

        Raises:
            ControlError: the engine refused or did not answer.
        """
