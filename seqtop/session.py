"""A viewer's session with one engine: the subscriber's thread, the state and a lock around it.

The thread receives, decodes and applies; whoever shows something takes the lock for as long as
it reads, and asks `drain` what has changed since it last did. Nothing here draws.
"""

from __future__ import annotations

import threading

from seqtop.connection import Connection, ConnectionState, UnreachableError
from seqtop.history.memory_store import MemoryStore
from seqtop.observable import Observable
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState, snapshot
from seqtop.state.listener import Listener, Watcher
from seqtop.transport import control_client
from seqtop.transport.curve_keys import ViewerKeys
from seqtop.transport.subscriber import Subscriber
from seqtop.wire import codec
from seqtop.wire.frames import Frame
from seqtop.wire.messages import Abort, Event, Heartbeat, Snapshot, Submit
from seqtop.wire.redaction import redact

DEFAULT_HISTORY = 10_000
"""Finished requests a viewer keeps."""


class Session(Observable):
    """Follows the engine at `endpoint` from `start` to `close`; a context manager does both.

    It changes whenever `state` or `link` has, but for the time, which heartbeats move on.

    Args:
        max_finished: Finished requests that `state` keeps.
        history: Where to keep what was seen; by default a `MemoryStore` of its default size.
        keys: For an engine that lets in holders of keys alone.
        redact: Take texts and tokens out of all that arrives, before anybody sees it.

    Raises:
        EndpointError: `endpoint` is malformed.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        max_finished: int = DEFAULT_HISTORY,
        history: MemoryStore | None = None,
        keys: ViewerKeys | None = None,
        redact: bool = False,
    ) -> None:
        super().__init__()
        self.lock = threading.RLock()
        """Held while an event is applied; hold it while reading `state`."""
        self.state = EngineState(max_finished=max_finished)
        """Replaced, not changed, when a snapshot arrives."""
        self.sequence_number = -1
        """Number of the last message that `state` contains."""
        self.history = MemoryStore() if history is None else history
        """Every moment seen so far, across gaps and restarts of the engine."""
        self._listeners: tuple[Listener, ...] = (self.history,)
        self._watchers: tuple[Watcher, ...] = ()
        self._incarnation: str | None = None
        self._max_finished = max_finished
        self._touched: set[int] | None = None
        self._loading: snapshot.SnapshotLoader | None = None
        self._settled = threading.Condition(self.lock)
        self._keys = keys
        self._redacts = redact
        self._subscriber = Subscriber(endpoint, self, curve_keys=keys)

    @property
    def link(self) -> Connection:
        """How the connection stands."""
        return self._subscriber.connection

    def start(self) -> None:
        self._subscriber.start()

    def close(self) -> None:
        self._subscriber.close()

    def drain(self) -> set[int] | None:
        """Ids of the sequences touched since the last call; `None` means everything."""
        with self.lock:
            touched, self._touched = self._touched, set()
            return touched

    def wait_for(self, *states: ConnectionState, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the link to be in one of `states`."""
        with self._settled:
            return self._settled.wait_for(lambda: self.link.state in states, timeout)

    def await_engine(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for a first state.

        Raises:
            UnreachableError: none came, the engine refused, or it cannot be understood.
        """
        refusals = (ConnectionState.INCOMPATIBLE, ConnectionState.REFUSED)
        answers = (ConnectionState.LIVE, ConnectionState.STOPPED, *refusals)
        if not self.wait_for(*answers, timeout=timeout):
            raise UnreachableError(
                f"no engine answered at {self.link.endpoint} within {timeout:g} s;"
                " is one running there?"
            )
        if self.link.state in refusals:
            raise UnreachableError(self.link.detail)

    def submit(self, prompt: str, params: SamplingParams) -> str:
        """Have the engine run `prompt`; returns the request id it was given.

        Blocks for up to two seconds. Raises `ControlError`.
        """
        command = Submit(prompt=prompt, sampling_params=params)
        return control_client.request(self.link.endpoint, command, curve_keys=self._keys).request_id

    def abort(self, request_id: str) -> None:
        """Have the engine end a request. Blocks for up to two seconds; raises `ControlError`."""
        control_client.request(
            self.link.endpoint, Abort(request_id=request_id), curve_keys=self._keys
        )

    def listen(self, listener: Listener) -> None:
        """Tell `listener` the state as it is, if there is one, and all that happens from now on."""
        with self.lock:
            if self._incarnation is not None:
                listener.restore(self._incarnation, self.sequence_number, self.state)
            self._listeners = (*self._listeners, listener)

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` told of every change from now on."""
        with self.lock:
            self._watchers = (*self._watchers, watcher)

    def unlisten(self, listener: Listener) -> None:
        with self.lock:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

    # What the subscriber calls, on its own thread.

    def apply(self, frame: Frame, event: Event) -> None:
        if self._redacts:
            event = redact(event)
            frame = frame._replace(payload=codec.encode(event))
        with self.lock:
            touched = self.state.apply(event)
            if self._touched is not None:
                self._touched.update(touched)
            self.sequence_number = frame.sequence_number
            for listener in self._listeners:
                listener.append(frame.sequence_number, frame.payload, event, self.state)
            for watcher in self._watchers:
                watcher(self.state, touched)
            if isinstance(event, Heartbeat):
                self.passed()
            else:
                self.changed()

    def load(self, state: memoryview, *, is_first: bool) -> None:
        if is_first or self._loading is None:
            self._loading = snapshot.SnapshotLoader(state)
        else:
            self._loading.add(state)

    def restore(self, reply: Snapshot) -> None:
        assert self._loading is not None
        state = self._loading.end(max_finished=self._max_finished)
        self._loading = None
        if self._redacts:
            state = redact(state)
        with self.lock:
            old = self.state.info
            if old and state.info and old.incarnation == state.info.incarnation:
                snapshot.share_finished(state, self.state)
                snapshot.carry_finished(state, self.state)
            for listener in self._listeners:
                listener.restore(reply.incarnation, reply.sequence_number, state)
            self._incarnation = reply.incarnation
            self.state = state
            self._touched = None
            for watcher in self._watchers:
                watcher(state, None)
            self.sequence_number = reply.sequence_number
            self.changed()

    def connection_changed(self) -> None:
        with self._settled:
            self.changed()
            self._settled.notify_all()

    def __enter__(self) -> Session:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
