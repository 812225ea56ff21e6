"""The viewer's end of the wire: receives, notices what is missing, and heals it.

Joining late follows the Clone pattern of the ZeroMQ guide: subscribe, wait for the first sign
that the subscription holds, keep what arrives, ask for a snapshot, take it over, then apply what
was kept and is newer. A gap in the numbers, another incarnation or a message that cannot be read
sends the subscriber through the same door again.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Protocol

import zmq

from seqtop.connection import ConnectionState
from seqtop.transport.base_subscriber import BaseSubscriber, ConnectionSink
from seqtop.transport.curve_keys import ViewerKeys
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.transport.handshake import HandshakeWatch
from seqtop.transport.keepalive import keep_alive
from seqtop.transport.pending_messages import PendingMessages
from seqtop.wire import codec, frames, parsing
from seqtop.wire.errors import WireError
from seqtop.wire.frames import Frame, Greeting
from seqtop.wire.messages import (
    OLDEST_VERSION,
    PROTOCOL_VERSION,
    EngineStopped,
    Event,
    Refused,
    Snapshot,
    SnapshotPart,
    SnapshotRequest,
)

MAX_UNREAD_MESSAGES = 1_000
"""Live messages that may wait to be read (`ZMQ_RCVHWM`); then the engine's side holds the rest."""

SILENCE_SECONDS = 3.5
"""An engine silent for this long is called lost: three heartbeats and some grace."""

_SNAPSHOT_RETRY_SECONDS = (0.5, 1.0)
"""After the first question, which is answered at once or has got lost; and after any other, as a
large snapshot on a slow line takes its time."""
_RECONNECT_SECONDS = 5.0
"""After a refusal, on which libzmq itself gives up."""

_MESSAGES_PER_ROUND = 500
_ANSWERS_PER_ROUND = 16
_LONGEST_POLL_MS = 250
"""While something is awaited or has gone wrong."""


class EventSink(ConnectionSink, Protocol):
    """Where a subscriber puts what it receives. Called on the subscriber's thread."""

    def apply(self, frame: Frame, event: Event) -> None:
        """Change the state by the next message, and by `event`, which is its decoded payload."""

    def load(self, state: memoryview, *, is_first: bool) -> None:
        """Take in a state that is to be restored, or more of it; raises `WireError`."""

    def restore(self, snapshot: Snapshot) -> None:
        """Replace the state by what has been loaded; raises `WireError` if that is none."""


@dataclass
class _Coming:
    """A snapshot that comes in parts."""

    snapshot: Snapshot
    next_index: int = 0
    num_bytes: int = 0


class Subscriber(BaseSubscriber[EventSink]):
    """Follows one engine on a thread of its own, from `start` to `close`.

    Raises:
        EndpointError: `endpoint` is malformed.
    """

    THREAD_NAME = "seqtop-subscriber"

    def __init__(self, endpoint: str, sink: EventSink, *, keys: ViewerKeys | None = None) -> None:
        super().__init__(endpoint, sink)
        self._keys = keys
        self._refused_at: float | None = None
        self._kept = PendingMessages[Frame]()
        """Live messages that came while a snapshot is awaited."""
        self._incarnation: str | None = None
        """The start of the engine that the state belongs to; `None` before the first snapshot."""
        self._version = PROTOCOL_VERSION
        """Of the protocol, as the engine speaks it."""
        self._last_number = -1
        self._synced = False
        self._coming: _Coming | None = None
        """The snapshot of which parts are awaited."""
        self._asked_at = 0.0
        self._retry_after = _SNAPSHOT_RETRY_SECONDS[0]
        self._heard_at: float | None = None

    def _open(self) -> None:
        self._live = self._context.socket(zmq.SUB)
        self._live.rcvhwm = MAX_UNREAD_MESSAGES
        self._live.maxmsgsize = frames.MAX_MESSAGE_BYTES
        # Everything, so that a foreign publisher is noticed rather than silently filtered out.
        self._live.subscribe(b"")
        keep_alive(self._live)
        self._questions = self._context.socket(zmq.DEALER)
        self._questions.maxmsgsize = frames.MAX_SNAPSHOT_BYTES
        self._questions.rcvhwm = _ANSWERS_PER_ROUND
        self._questions.linger = 0
        keep_alive(self._questions)
        if self._keys is not None:
            self._keys.secure(self._live)
            self._keys.secure(self._questions)
        self._handshakes = HandshakeWatch(
            self._live, self.link.endpoint, has_keys=self._keys is not None
        )
        self._connect()

    def _connect(self) -> None:
        self._live.connect(self.link.endpoint)
        self._questions.connect(snapshot_endpoint(self.link.endpoint))

    def _reconnect(self) -> None:
        for socket, endpoint in (
            (self._live, self.link.endpoint),
            (self._questions, snapshot_endpoint(self.link.endpoint)),
        ):
            with contextlib.suppress(zmq.ZMQError):  # refused, it may be gone already
                socket.disconnect(endpoint)
        self._connect()

    def _follow(self) -> None:
        poller = zmq.Poller()
        for socket in (self._live, self._questions, self._woken, self._handshakes.monitor):
            poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(self._patience_ms))
            if self._woken in ready:
                break
            if self._live in ready:
                self._receive_some()
            if self._questions in ready:
                self._receive_answers()
            if self._handshakes.monitor in ready:
                self._look_at_handshakes()
            self._watch_the_clock()
        self._handshakes.close()
        for socket in (self._live, self._questions, self._woken):
            socket.close()

    def _look_at_handshakes(self) -> None:
        if refusal := self._handshakes.refusal():
            self._refused_at = time.monotonic()
            self._show(ConnectionState.REFUSED, refusal)

    def _receive_some(self) -> None:
        for _ in range(_MESSAGES_PER_ROUND):
            try:
                parts = self._live.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._received(parts)

    def _received(self, parts: list[bytes]) -> None:
        self.link.num_bytes += sum(map(len, parts))
        try:
            frame = frames.unpack(parts)
        except WireError as error:
            self._refused(error)
            if not self._synced:
                self._show(ConnectionState.INCOMPATIBLE, self._foreign_sentence(error))
            return
        first_sign = self._heard_at is None
        self._heard_at = time.monotonic()
        self._version = frame.version
        if isinstance(frame, Greeting):
            if not self._synced:
                self._ask()
            return
        self.link.num_messages += 1
        if not self._synced:
            self._kept.add(frame)
            if first_sign:
                self._ask()
        elif frame.incarnation != self._incarnation:
            self._resync("the engine has been restarted", frame)
        elif frame.sequence_number > self._last_number + 1:
            missed = frame.sequence_number - self._last_number - 1
            self.link.num_missed += missed
            self._resync(f"{missed} messages were missed", frame)
        elif frame.sequence_number == self._last_number + 1:
            self._take(frame)
        # A number already seen is a repetition, which changes nothing.

    def _take(self, frame: Frame) -> None:
        """Apply the next message in line."""
        try:
            event = parsing.event(frame.payload)
        except WireError as error:
            self._refused(error)
            self._resync(f"a message could not be read: {error}", frame)
            return
        self._last_number = frame.sequence_number
        self._sink.apply(frame, event)
        if isinstance(event, EngineStopped):
            self._show(ConnectionState.STOPPED, event.reason or "the engine has stopped")
        elif self.link.state is not ConnectionState.LIVE:
            self._show(ConnectionState.LIVE)

    def _resync(self, why: str, frame: Frame) -> None:
        self._synced = False
        self._kept.take()
        self._kept.add(frame)
        self.link.num_resyncs += 1
        self._show(ConnectionState.SYNCING, why)
        self._ask()

    def _ask(self) -> None:
        self._coming = None
        self._asked_at = time.monotonic()
        request = SnapshotRequest(protocol_version=self._version)
        with contextlib.suppress(zmq.Again):  # asked again after a while
            self._questions.send(codec.encode(request), zmq.DONTWAIT)

    def _receive_answers(self) -> None:
        for _ in range(_ANSWERS_PER_ROUND):
            try:
                # Not copied: a snapshot may be large.
                parts = self._questions.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            try:
                self._answered([part.buffer for part in parts])
            except WireError as error:
                self._coming = None
                self._refused(error)

    def _answered(self, parts: list[memoryview]) -> None:
        message, *state = frames.unseal(parts, max(len(parts) - 1, 1))
        reply = parsing.reply(message)
        if isinstance(reply, Refused):
            self._show(ConnectionState.INCOMPATIBLE, reply.error)
        elif self._synced:
            return
        elif isinstance(reply, Snapshot):
            self._begin(reply)
        elif isinstance(reply, SnapshotPart) and len(state) == 1:
            self._go_on(reply, state[0])

    def _begin(self, snapshot: Snapshot) -> None:
        self._coming = None
        if not OLDEST_VERSION <= snapshot.protocol_version <= PROTOCOL_VERSION:
            raise frames.ProtocolVersionError(
                f"the snapshot is of version {snapshot.protocol_version} of the protocol"
            )
        same_engine = snapshot.incarnation == self._incarnation
        if same_engine and snapshot.sequence_number < self._last_number:
            return  # the late answer to an earlier question
        self._asked_at = time.monotonic()
        self._sink.load(memoryview(snapshot.state), is_first=True)
        if snapshot.has_parts:
            self._coming = _Coming(snapshot)
        else:
            self._restore(snapshot)

    def _go_on(self, part: SnapshotPart, state: memoryview) -> None:
        coming = self._coming
        if coming is None or part.index != coming.next_index:
            self._coming = None  # one has been lost; all of it will be asked for again
            return
        coming.next_index += 1
        coming.num_bytes += len(state)
        if coming.num_bytes > frames.MAX_SNAPSHOT_BYTES:
            raise WireError(f"the snapshot has more than {frames.MAX_SNAPSHOT_BYTES:,} bytes")
        self._asked_at = time.monotonic()
        self._sink.load(state, is_first=False)
        if part.is_last:
            self._coming = None
            self._restore(coming.snapshot)

    def _restore(self, snapshot: Snapshot) -> None:
        self._sink.restore(snapshot)
        self._heard_at = time.monotonic()
        self._incarnation = snapshot.incarnation
        self._last_number = snapshot.sequence_number
        self._synced = True
        self._retry_after = _SNAPSHOT_RETRY_SECONDS[0]
        self._show(ConnectionState.LIVE)
        kept = self._kept.take()
        for position, frame in enumerate(kept):
            self._replay(frame)
            if not self._synced:  # a hole among the kept ones: start over with what is left
                for left in kept[position + 1 :]:
                    self._kept.add(left)
                return

    def _replay(self, frame: Frame) -> None:
        if frame.incarnation != self._incarnation:
            return
        if frame.sequence_number == self._last_number + 1:
            self._take(frame)
        elif frame.sequence_number > self._last_number + 1:
            missed = frame.sequence_number - self._last_number - 1
            self.link.num_missed += missed
            self._resync(f"{missed} messages were missed", frame)

    @property
    def _patience_ms(self) -> int:
        """For how long `_watch_the_clock` has nothing to do if nothing is received."""
        if self._refused_at is None and self._heard_at is not None and self._synced:
            left = self._heard_at + SILENCE_SECONDS - time.monotonic()
            return max(_LONGEST_POLL_MS, int(left * 1e3) + 1)
        return _LONGEST_POLL_MS

    def _watch_the_clock(self) -> None:
        now = time.monotonic()
        if self._refused_at is not None and now - self._refused_at > _RECONNECT_SECONDS:
            self._refused_at = None
            self._reconnect()
        if self._heard_at is None:
            if self.link.state is ConnectionState.CONNECTING and not self.link.detail:
                self._show(
                    ConnectionState.CONNECTING, f"no engine answers at {self.link.endpoint} yet"
                )
            return
        if not self._synced and now - self._asked_at > self._retry_after:
            self._ask()
            self._retry_after = _SNAPSHOT_RETRY_SECONDS[1]
        silence = now - self._heard_at
        if silence > SILENCE_SECONDS and self.link.state in (
            ConnectionState.LIVE,
            ConnectionState.SYNCING,
        ):
            self._show(
                ConnectionState.LOST,
                f"nothing heard from {self.link.endpoint}; waiting for it to return",
            )

    def _foreign_sentence(self, error: WireError) -> str:
        if isinstance(error, frames.ProtocolVersionError):
            return str(error)
        return (
            f"what is published at {self.link.endpoint} is not a seqtop stream: {error}"
            " (KV-cache events are shown with --kv-events)"
        )
