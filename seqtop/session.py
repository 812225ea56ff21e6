"""A viewer's session with one engine: the subscriber's thread, the state and a lock around it.

The thread receives, decodes and applies; whoever shows something takes the lock for as long as
it reads, and asks `drain` what has changed since it last did. Nothing here draws.
"""

from __future__ import annotations

import threading
from types import TracebackType

from seqtop.link import Link, LinkState
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState, snapshot
from seqtop.wire import control
from seqtop.wire.messages import Abort, Event, Snapshot, Submit
from seqtop.wire.subscriber import Subscriber

DEFAULT_HISTORY = 10_000
"""Finished requests a viewer keeps."""


class Session:
    """Follows the engine at `endpoint` from `start` to `close`; a context manager does both.

    Raises:
        EndpointError: `endpoint` is malformed.
    """

    def __init__(self, endpoint: str, *, max_finished: int = DEFAULT_HISTORY) -> None:
        self.lock = threading.RLock()
        """Held while an event is applied; hold it while reading `state`."""
        self.state = EngineState(max_finished=max_finished)
        """Replaced, not changed, when a snapshot arrives."""
        self.sequence_number = -1
        """Number of the last message that `state` contains."""
        self.version = 0
        """Grows whenever `state` or `link` has changed."""
        self._max_finished = max_finished
        self._touched: set[int] | None = None
        self._settled = threading.Condition(self.lock)
        self._subscriber = Subscriber(endpoint, self)

    @property
    def link(self) -> Link:
        """How the connection stands."""
        return self._subscriber.link

    def start(self) -> None:
        self._subscriber.start()

    def close(self) -> None:
        self._subscriber.close()

    def drain(self) -> set[int] | None:
        """Ids of the sequences touched since the last call; `None` means everything."""
        with self.lock:
            touched, self._touched = self._touched, set()
            return touched

    def wait_for(self, *states: LinkState, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the link to be in one of `states`."""
        with self._settled:
            return self._settled.wait_for(lambda: self.link.state in states, timeout)

    def submit(self, prompt: str, params: SamplingParams) -> str:
        """Have the engine run `prompt`; returns the request id it was given.

        Blocks for up to two seconds. Raises `ControlError`.
        """
        command = Submit(prompt=prompt, sampling_params=params)
        return control.ask(self.link.endpoint, command).request_id

    def abort(self, request_id: str) -> None:
        """Have the engine end a request. Blocks for up to two seconds; raises `ControlError`."""
        control.ask(self.link.endpoint, Abort(request_id=request_id))

    # What the subscriber calls, on its own thread.

    def apply(self, event: Event, sequence_number: int) -> None:
        with self.lock:
            touched = self.state.apply(event)
            if self._touched is not None:
                self._touched.update(touched)
            self.sequence_number = sequence_number
            self.version += 1

    def restore(self, reply: Snapshot) -> None:
        state = snapshot.load(bytes(reply.state), max_finished=self._max_finished)
        with self.lock:
            old = self.state.info
            if old and state.info and old.incarnation == state.info.incarnation:
                snapshot.keep_history(state, self.state)
            self.state = state
            self._touched = None
            self.sequence_number = reply.sequence_number
            self.version += 1

    def link_changed(self) -> None:
        with self._settled:
            self.version += 1
            self._settled.notify_all()

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
