"""A viewer's session with one engine: the subscriber's thread, the state and its lock.

The thread receives, decodes and applies events. Readers take the lock while they read the state.
"""

from __future__ import annotations

from seqtop.history.memory_store import MemoryStore
from seqtop.live.base_session import BaseSession
from seqtop.process import descriptors
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState, snapshot
from seqtop.state.finished import DEFAULT_MAX_BYTES, FinishedMemory
from seqtop.state.listener import Listener, StateChange
from seqtop.transport import control_client
from seqtop.transport.connection import ConnectionState, UnreachableError
from seqtop.transport.curve_keys import ViewerKeys
from seqtop.transport.subscriber import Subscriber
from seqtop.wire import codec
from seqtop.wire.frames import Frame
from seqtop.wire.messages import Abort, EngineSummary, Event, RequestFinished, Submit
from seqtop.wire.redaction import redact
from seqtop.wire.snapshot import Snapshot, SnapshotPart

VIEWER_MAX_FINISHED = 10_000
"""Finished requests in the state of a viewer."""

_DESCRIPTORS = 16
"""The file descriptors of a session, with some to spare: of sockets, and of libzmq's threads."""
_OTHER_DESCRIPTORS = 128


def most_sessions(wanted: int) -> int:
    """Returns how many of so many sessions this process can have at once.

    Its limit on file descriptors is raised if that is necessary and possible.
    """
    limit = descriptors.raise_limit(_OTHER_DESCRIPTORS + _DESCRIPTORS * wanted)
    return int(min(wanted, max(limit - _OTHER_DESCRIPTORS, 0.0) / _DESCRIPTORS))


class Session(BaseSession):
    """Follows the engine at `endpoint`, and keeps its state and its history.

    Args:
        endpoint: Where the engine publishes.
        max_finished: The largest number of finished requests in `state`.
        max_finished_bytes: The most bytes of memory that they take.
        history: The store for all events; by default a `MemoryStore` of its default size.
        keys: Keys for an engine that requires CurveZMQ authentication.
        is_subscribed: Whether it reads the engine's stream from the start on, see `set_subscribed`.
        redact: Removes texts and tokens from everything that arrives, before any listener sees it.

    Raises:
        EndpointError: `endpoint` is malformed.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        max_finished: int = VIEWER_MAX_FINISHED,
        max_finished_bytes: int = DEFAULT_MAX_BYTES,
        history: MemoryStore | None = None,
        keys: ViewerKeys | None = None,
        is_subscribed: bool = True,
        redact: bool = False,
    ) -> None:
        super().__init__()
        self.state = EngineState(max_finished=max_finished)
        """The engine's state. A snapshot replaces the object."""
        self.summary: EngineSummary | None = None
        """The last summary, while the stream is not read and `state` is old; else `None`."""
        self.sequence_number = -1
        """Number of the last message that `state` contains."""
        self.history = MemoryStore() if history is None else history
        """All events so far, across gaps and restarts of the engine."""
        self.finished_memory = FinishedMemory(max_finished_bytes)
        """The memory of the finished requests in `state`, and its limit."""
        self._listeners: tuple[Listener, ...] = (self.history.record,)
        self._incarnation: str | None = None
        self._max_finished = max_finished
        self._loading = EngineState()
        self._loader: snapshot.SnapshotLoader | None = None
        self._keys = keys
        self._subscriber: Subscriber
        self._redacts = redact
        self._subscriber = Subscriber(endpoint, self, curve_keys=keys, is_subscribed=is_subscribed)

    def await_engine(self, timeout: float) -> None:
        """Waits up to `timeout` seconds for a first state.

        Raises:
            UnreachableError: No state arrived, the engine refused or stopped, or it cannot be
                understood.
        """
        failures = (
            ConnectionState.INCOMPATIBLE,
            ConnectionState.REFUSED,
            ConnectionState.STOPPED,
        )
        self.wait_until(
            lambda: self._incarnation is not None or self.connection.state in failures, timeout
        )
        if self._incarnation is not None:
            return
        if self.connection.state is ConnectionState.STOPPED:
            raise UnreachableError(
                f"the engine at {self.connection.endpoint} stopped before it sent its state:"
                f" {self.connection.detail}"
            )
        if self.connection.state in failures:
            raise UnreachableError(self.connection.detail)
        raise UnreachableError(self._explain_no_state(timeout))

    def _explain_no_state(self, timeout: float) -> str:
        """Returns the reason why no state arrived within `timeout` seconds, in one sentence."""
        connection = self.connection
        if connection.last_error:
            return f"the engine at {connection.endpoint} answered, but {connection.last_error}"
        if connection.num_bytes:
            return (
                f"the engine at {connection.endpoint} publishes, but did not send its state within"
                f" {timeout:g} s"
            )
        return (
            f"no engine answered at {connection.endpoint} within {timeout:g} s;"
            " is one running there?"
        )

    def follow(self, endpoint: str) -> None:
        """Follows the engine at another endpoint from now on; its state and history stay.

        Raises:
            EndpointError: The endpoint is malformed.
        """
        self._subscriber.follow(endpoint)

    def leave(self, reason: str) -> None:
        """Disconnects until `follow` is called. The engine is lost; `reason` says why."""
        self._subscriber.leave(reason)

    def set_subscribed(self, is_subscribed: bool) -> None:
        """Subscribes to the engine's stream, or leaves it and has a summary a second instead.

        What happens meanwhile is missing in the history. The stream of an engine that sends
        no summaries is read anyway. Called on the thread that starts and closes the session.
        """
        self._subscriber.set_subscribed(is_subscribed)

    def limit_memory(self, *, history: int, finished: int) -> None:
        """Sets the limits, in bytes, on the history and on the finished requests in `state`."""
        with self.lock:
            self.history.max_bytes = history
            self.finished_memory.max_bytes = finished

    def submit(self, prompt: str, params: SamplingParams) -> str:
        """Submits `prompt` to the engine and returns its request id.

        Blocks for up to two seconds.

        Raises:
            ControlError: The engine refused or did not answer.
        """
        command = Submit(prompt=prompt, sampling_params=params)
        return control_client.request(
            self.connection.endpoint, command, curve_keys=self._keys
        ).request_id

    def abort(self, request_id: str) -> None:
        """Aborts a request. Blocks for up to two seconds.

        Raises:
            ControlError: The engine refused or did not answer.
        """
        control_client.request(
            self.connection.endpoint, Abort(request_id=request_id), curve_keys=self._keys
        )

    def add_listener(self, listener: Listener) -> None:
        """Calls `listener` with the current state, if there is one, and with each later change."""
        with self.lock:
            if self._incarnation is not None:
                listener(self._replaced(self._incarnation))
            self._listeners = (*self._listeners, listener)

    def remove_listener(self, listener: Listener) -> None:
        """Removes a listener that `add_listener` added."""
        with self.lock:
            self._listeners = tuple(other for other in self._listeners if other != listener)

    # The interface of an `EventSink`, for the subscriber's thread.

    def apply(self, frame: Frame, event: Event) -> None:
        """Applies the next event to `state` and notifies the listeners."""
        if self._redacts:
            event = redact(event)
            frame = frame._replace(payload=codec.encode(event))
        with self.lock:
            touched = self.state.apply(event)
            if isinstance(event, RequestFinished):
                touched = [*touched, *self.finished_memory.add(self.state, event.request_id)]
            self.sequence_number = frame.sequence_number
            change = StateChange(self.state, touched, event, frame.payload, frame.sequence_number)
            self._publish(change)
        self.history.end_segment(self.state)  # this thread alone changes the state

    def summarize(self, summary: EngineSummary) -> None:
        """Notes a summary, while the stream is not read."""
        with self.lock:
            self.summary = summary
            self.changed()

    def load(self, message: Snapshot | SnapshotPart) -> None:
        """Begins to load a snapshot, or adds a part of it.

        Raises:
            WireError: It contradicts itself, or repeats an entry of an earlier part.
        """
        if self._redacts:
            message = redact(message)
        if isinstance(message, Snapshot):
            self._loading = EngineState(max_finished=self._max_finished)
            self._loader = snapshot.SnapshotLoader(message, self._loading)
        assert self._loader is not None, "a part follows its snapshot"
        self._loader.add(message.requests, message.cached_blocks or ())

    def restore(self, incarnation: str, sequence_number: int) -> None:
        """Replaces `state` by the loaded snapshot and notifies the listeners.

        Raises:
            WireError: The snapshot contradicts itself.
        """
        assert self._loader is not None, "a snapshot has been loaded"
        self._loader.end()
        state, self._loader, self._loading = self._loading, None, EngineState()
        with self.lock:
            old = self.state.info
            if old and state.info and old.incarnation == state.info.incarnation:
                snapshot.share_finished(state, self.state)
                snapshot.carry_finished(state, self.state)
            self.finished_memory.limit(state)
            self._incarnation = incarnation
            self.state = state
            self.summary = None
            self.sequence_number = sequence_number
            self._publish(self._replaced(incarnation))

    def _replaced(self, incarnation: str) -> StateChange:
        return StateChange(
            self.state,
            None,
            sequence_number=self.sequence_number,
            incarnation=incarnation,
        )

    def _publish(self, change: StateChange) -> None:
        for listener in self._listeners:
            listener(change)
        self.changed()
