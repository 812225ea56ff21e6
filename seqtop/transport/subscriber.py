"""The viewer's end of the protocol: receives the live stream and repairs gaps in it.

A late join follows the Clone pattern of the ZeroMQ guide: subscribe, wait for the first message
(which proves that the subscription is active), store messages, request a snapshot, load it, then
apply the stored messages that are newer. A gap in the sequence numbers, another incarnation or a
message that cannot be decoded starts the same procedure again.

A viewer of many engines follows the streams of only a few. Of the others it requests an
`EngineSummary` each second, unless the engine refuses that or does not answer.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from typing import Protocol

import zmq

from seqtop.text import format as fmt
from seqtop.transport import sockets
from seqtop.transport.base_subscriber import END, BaseSubscriber, ConnectionSink, PendingMessages
from seqtop.transport.connection import ConnectionState
from seqtop.transport.curve_keys import ViewerKeys
from seqtop.transport.endpoints import check, snapshot_endpoint
from seqtop.transport.handshake import HandshakeMonitor
from seqtop.wire import codec, frames, parsing
from seqtop.wire.element_count import MAX_STATE_ELEMENTS, count_elements
from seqtop.wire.errors import WireError
from seqtop.wire.frames import Frame, ReplyFrame, Welcome
from seqtop.wire.message_tag import tag
from seqtop.wire.messages import (
    EngineStopped,
    EngineSummary,
    Event,
    Refused,
    SnapshotRequest,
    SummaryRequest,
)
from seqtop.wire.snapshot import Snapshot, SnapshotPart

MAX_UNREAD_MESSAGES = 1_000
"""Unread live messages (`ZMQ_RCVHWM`). More wait at the engine's end."""

SILENCE_SECONDS = 3.5
"""The silence after which an engine counts as lost: three heartbeats and a margin."""

SECONDS_BETWEEN_SUMMARIES = 1.0
"""The time from one request for a summary to the next."""

_FIRST_RETRY_SECONDS = 0.5
"""The time for the first snapshot, which is sent at once if the request was not lost."""
_RETRY_SECONDS = 1.0
"""The time for a large snapshot on a slow network."""
_RECONNECT_SECONDS = 5.0
"""The time after a refusal, since libzmq does not reconnect then."""

_CHANGE = b"change"
"""Wakes the thread to connect elsewhere, or to subscribe or unsubscribe."""
_STOPPED = "the engine has stopped"
_MESSAGES_PER_ROUND = 500
_REPLIES_PER_ROUND = 16
_MAX_UNSENT_REQUESTS = 4
"""Requests that wait for an engine which is not there; more are not made."""
_MIN_POLL_MS = 250
"""The poll interval while a reply is due or something has failed."""


class EventSink(ConnectionSink, Protocol):
    """Receives events and snapshots. Called on the subscriber's thread."""

    def apply(self, frame: Frame, event: Event) -> None:
        """Updates the state by the next message; `event` is its decoded payload."""

    def load(self, message: Snapshot | SnapshotPart) -> None:
        """Begins a snapshot, or adds a part of it.

        Raises:
            WireError: It contradicts itself, or what was added before.
        """

    def summarize(self, summary: EngineSummary) -> None:
        """Notes a summary, while the stream is not read."""

    def restore(self, incarnation: str, sequence_number: int) -> None:
        """Replaces the state by the loaded snapshot, which includes the message of that number.

        Raises:
            WireError: The snapshot contradicts itself.
        """


@dataclass
class _PartialSnapshot:
    """A snapshot whose parts have not all arrived."""

    frame: ReplyFrame
    next_index: int = 0
    num_bytes: int = 0
    num_elements: int = 0

    def add_size(self, payload: memoryview) -> None:
        """Counts the next message.

        Raises:
            WireError: All messages together have too many bytes or elements.
        """
        self.num_bytes += len(payload)
        if self.num_bytes > frames.MAX_SNAPSHOT_BYTES:
            raise WireError(f"the snapshot has more than {frames.MAX_SNAPSHOT_BYTES:,} bytes")
        if self.num_bytes > MAX_STATE_ELEMENTS:  # only then it can have too many
            limit = MAX_STATE_ELEMENTS - self.num_elements
            self.num_elements += count_elements(payload, limit)


class Subscriber(BaseSubscriber[EventSink]):
    """Follows one engine on a thread of its own, from `start` to `close`.

    Args:
        endpoint: The endpoint of the engine's live stream.
        sink: Receives events and snapshots.
        curve_keys: The viewer's CurveZMQ keys, if the engine requires any.
        is_subscribed: Whether it reads the stream from the start on.

    Raises:
        EndpointError: The endpoint is malformed.
    """

    THREAD_NAME = "seqtop-subscriber"

    def __init__(
        self,
        endpoint: str,
        sink: EventSink,
        *,
        curve_keys: ViewerKeys | None = None,
        is_subscribed: bool = True,
    ) -> None:
        super().__init__(endpoint, sink)
        self._curve_keys = curve_keys
        self._refused_at: float | None = None
        # Live messages that arrive before the snapshot.
        self._pending = PendingMessages[Frame]()
        # The incarnation of the state; None before the first snapshot.
        self._incarnation: str | None = None
        self._last_number = -1
        self._is_synced = False
        self._partial: _PartialSnapshot | None = None
        # The reason of an EngineStopped that is pending; None if none is, or others came after it.
        self._pending_stop: str | None = None
        self._requested_at = -math.inf  # the first request is due at once
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._received_at: float | None = None
        # Where `follow` wants it connected; empty for nowhere.
        self._wanted = endpoint
        self._reason = ""
        self._is_moved = False
        self._is_stream_wanted = is_subscribed
        self._has_summaries = True
        """False after the engine has refused to send a summary, or has not answered."""
        self._is_subscribed = is_subscribed
        self._asked_at = -math.inf
        self._num_unanswered = 0
        # True from a subscription of a connection that may have been welcomed to its first message.
        self._is_joining = False

    def follow(self, endpoint: str) -> None:
        """Follows the engine at another endpoint from now on, and keeps what is known of it.

        Raises:
            EndpointError: The endpoint is malformed.
        """
        self._move(check(endpoint))

    def leave(self, reason: str) -> None:
        """Disconnects until `follow` is called; `reason` says why, in one sentence."""
        self._move("", reason)

    def _move(self, endpoint: str, reason: str = "") -> None:
        self._wanted, self._reason, self._is_moved = endpoint, reason, True
        self._wake()

    def set_subscribed(self, is_subscribed: bool) -> None:
        """Subscribes to the stream, or leaves it and requests summaries.

        Called on the thread that calls `start` and `close`.
        """
        if is_subscribed is self._is_stream_wanted:
            return
        self._is_stream_wanted = is_subscribed
        if self._thread.is_alive():
            self._wake()
        else:
            self._is_subscribed = is_subscribed

    def _wake(self) -> None:
        with contextlib.suppress(zmq.Again):  # the thread has failed, and reads nothing
            self._wake_sender.send(_CHANGE, zmq.DONTWAIT)

    def _open(self) -> None:
        self._live = self._context.socket(zmq.SUB)
        self._live.rcvhwm = MAX_UNREAD_MESSAGES
        self._live.maxmsgsize = frames.MAX_MESSAGE_BYTES
        # All topics, so that a foreign publisher is reported instead of filtered out.
        if self._is_subscribed:
            self._live.subscribe(b"")
        sockets.enable_keepalive(self._live)
        self._requests = self._context.socket(zmq.DEALER)
        self._requests.maxmsgsize = frames.MAX_SNAPSHOT_BYTES
        self._requests.rcvhwm = _REPLIES_PER_ROUND
        self._requests.sndhwm = _MAX_UNSENT_REQUESTS
        self._requests.linger = 0
        sockets.enable_keepalive(self._requests)
        if self._curve_keys is not None:
            self._curve_keys.secure(self._live)
            self._curve_keys.secure(self._requests)
        self._handshakes = HandshakeMonitor(
            self._live, self.connection.endpoint, has_keys=self._curve_keys is not None
        )
        self._connect()

    def _connect(self) -> None:
        self._handshakes.endpoint = self.connection.endpoint
        self._live.connect(self.connection.endpoint)
        self._requests.connect(snapshot_endpoint(self.connection.endpoint))

    def _reconnect(self) -> None:
        self._disconnect()
        self._connect()

    def _disconnect(self) -> None:
        for socket, endpoint in (
            (self._live, self.connection.endpoint),
            (self._requests, snapshot_endpoint(self.connection.endpoint)),
        ):
            with contextlib.suppress(zmq.ZMQError):  # libzmq may have closed a refused connection
                socket.disconnect(endpoint)

    def _connect_where_wanted(self) -> None:
        self._is_moved = False
        self._disconnect()
        self._refused_at = None
        self._is_synced = False
        self._pending.take()
        state, wanted = self.connection.state, self._wanted
        if not wanted:
            if state is not ConnectionState.STOPPED:
                self._set_state(ConnectionState.LOST, self._reason)
            return
        self.connection.endpoint = wanted
        try:
            self._connect()
        except zmq.ZMQError as error:
            self._set_state(ConnectionState.LOST, f"cannot connect to {wanted}: {error.strerror}")
            return
        if self._received_at is None:
            self._set_state(ConnectionState.CONNECTING)
        elif state is ConnectionState.LIVE:
            self._set_state(ConnectionState.SYNCING, f"the engine is now at {wanted}")
        else:
            self._set_state(ConnectionState.LOST, f"waiting for the engine to return at {wanted}")

    def _receive_until_woken(self) -> None:
        poller = zmq.Poller()
        for socket in (self._live, self._requests, self._wake_receiver, self._handshakes.socket):
            poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll(self._poll_timeout_ms()))
            if self._wake_receiver in ready:
                if self._wake_receiver.recv() == END:
                    break
                if self._is_moved:
                    self._connect_where_wanted()
                self._change_source()
            if self._live in ready:
                self._receive_messages()
            if self._requests in ready:
                self._receive_replies()
            if self._handshakes.socket in ready:
                self._check_handshakes()
            self._check_timeouts()
            if not self._is_subscribed:
                self._request_summary_if_due()
        self._handshakes.close()
        for socket in (self._live, self._requests, self._wake_receiver):
            socket.close()

    def _change_source(self) -> None:
        """Begins with the stream or with summaries, if that is wanted and is not so already."""
        wanted = self._is_stream_wanted or not self._has_summaries
        if wanted is self._is_subscribed:
            return
        self._is_subscribed = wanted
        self._is_synced, self._partial, self._pending_stop = False, None, None
        self._pending.take()
        if not wanted:
            self._live.unsubscribe(b"")
            self._asked_at = -math.inf
            return
        # A connection has one welcome message: after that, the first message shows the same.
        self._live.subscribe(b"")
        self._is_joining = True
        self._requested_at, self._retry_seconds = time.monotonic(), _FIRST_RETRY_SECONDS
        if self.connection.state is ConnectionState.LIVE:
            self._set_state(
                ConnectionState.SYNCING,
                f"the state of the engine at {self.connection.endpoint} is being received",
            )

    def _request_summary_if_due(self) -> None:
        now = time.monotonic()
        if now - self._asked_at >= SECONDS_BETWEEN_SUMMARIES:
            self._asked_at = now
            with contextlib.suppress(zmq.Again):
                self._requests.send(codec.encode(SummaryRequest()), zmq.DONTWAIT)
                self._num_unanswered += 1

    def _take_summary(self, summary: EngineSummary) -> None:
        if not self._wanted:
            return  # it was sent before the engine was left
        self._received_at = time.monotonic()
        self.connection.num_messages += 1
        self._sink.summarize(summary)
        if summary.stopped is not None:
            self._set_state(ConnectionState.STOPPED, summary.stopped or _STOPPED)
        elif self.connection.state is not ConnectionState.LIVE:
            self._set_state(ConnectionState.LIVE)

    def _check_handshakes(self) -> None:
        if (refusal := self._handshakes.refusal()) and self._wanted:
            self._refused_at = time.monotonic()
            self._set_state(ConnectionState.REFUSED, refusal)

    def _receive_messages(self) -> None:
        for _ in range(_MESSAGES_PER_ROUND):
            try:
                parts = self._live.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            if not self._is_subscribed:
                continue  # it was sent before the stream was left
            self.connection.num_bytes += sum(map(len, parts))
            try:
                frame = frames.unpack(parts)
            except WireError as error:
                self._report_error(error)
                if not self._is_synced:
                    self._set_state(ConnectionState.INCOMPATIBLE, self._explain_foreign(error))
                continue
            self._received_at = time.monotonic()
            if not self._is_synced and (self._is_joining or isinstance(frame, Welcome)):
                self._is_joining = False
                self._request_snapshot()
            if isinstance(frame, Welcome):
                continue
            self.connection.num_messages += 1
            if not self._is_synced:
                self._add_pending(frame)
            elif frame.incarnation != self._incarnation:
                self._resync("the engine has been restarted", frame)
            else:
                self._apply(frame)

    def _apply(self, frame: Frame) -> None:
        """Applies a frame if it is the next one and can be decoded, and resyncs otherwise.

        A number that has been applied already is a repetition and has no effect.
        """
        num_missed = frame.sequence_number - self._last_number - 1
        if num_missed > 0:
            self.connection.num_missed += num_missed
            verb = "was" if num_missed == 1 else "were"
            self._resync(f"{fmt.plural(num_missed, 'message')} {verb} missed", frame)
        if num_missed != 0:
            return
        try:
            event = parsing.event(frame.payload)
        except parsing.UnknownEventError:
            self._last_number = frame.sequence_number
            self.connection.num_unknown += 1
            return
        except WireError as error:
            self._report_error(WireError(f"message {frame.sequence_number}: {error}"))
            self._resync(f"a message could not be read: {error}", frame)
            return
        self._last_number = frame.sequence_number
        self._sink.apply(frame, event)
        if isinstance(event, EngineStopped):
            self._set_state(ConnectionState.STOPPED, event.reason or _STOPPED)
        elif self.connection.state is not ConnectionState.LIVE:
            self._set_state(ConnectionState.LIVE)

    def _resync(self, reason: str, frame: Frame) -> None:
        self._is_synced = False
        self._pending.take()
        self._add_pending(frame)
        self.connection.num_resyncs += 1
        self._set_state(ConnectionState.SYNCING, reason)
        self._request_snapshot()

    def _add_pending(self, frame: Frame) -> None:
        self._pending.add(frame)
        self._pending_stop = None
        if tag(frame.payload) == EngineStopped.__name__:
            with contextlib.suppress(WireError):
                stop = parsing.event(frame.payload)
                self._pending_stop = (isinstance(stop, EngineStopped) and stop.reason) or _STOPPED

    def _request_snapshot(self) -> None:
        self._partial = None
        self._requested_at = time.monotonic()
        with contextlib.suppress(zmq.Again):  # the request is repeated after a time-out
            self._requests.send(codec.encode(SnapshotRequest(with_parts=True)), zmq.DONTWAIT)

    def _receive_replies(self) -> None:
        for _ in range(_REPLIES_PER_ROUND):
            try:
                # Not copied, since a snapshot may be large.
                parts = self._requests.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            try:
                frame = self._handle_reply([part.buffer for part in parts])
                # Its memory is not needed any more, and the sink may encode the state again.
                del parts
                if frame is not None:
                    self._restore(frame)
            except WireError as error:
                self._partial = None
                what = "snapshot" if self._is_subscribed else "summary"
                self._report_error(WireError(f"its {what} cannot be used: {error}"))

    def _handle_reply(self, parts: list[memoryview]) -> ReplyFrame | None:
        """Handles a reply; returns the frame of the snapshot that is complete by it."""
        frame = frames.unpack_reply(parts)
        reply = parsing.reply(frame.payload)
        if not self._is_subscribed:
            self.connection.num_bytes += sum(map(len, parts))
        if isinstance(reply, EngineSummary):
            self._num_unanswered = 0
            if not self._is_subscribed:
                self._take_summary(reply)
        elif isinstance(reply, Refused) and self._num_unanswered:  # by an engine that has none
            self._num_unanswered -= 1
            self._has_summaries = False
            self._change_source()
        elif not self._is_subscribed:
            return None
        elif isinstance(reply, Refused):
            self._set_state(ConnectionState.INCOMPATIBLE, reply.error)
        elif self._is_synced:
            return None
        elif isinstance(reply, Snapshot):
            return self._begin_snapshot(frame, reply)
        elif isinstance(reply, SnapshotPart):
            return self._add_part(frame, reply)
        return None

    def _begin_snapshot(self, frame: ReplyFrame, snapshot: Snapshot) -> ReplyFrame | None:
        same_engine = frame.incarnation == self._incarnation
        if same_engine and frame.next_number <= self._last_number:
            return None  # a late reply to an earlier request
        self._requested_at = time.monotonic()
        partial = _PartialSnapshot(frame._replace(payload=memoryview(b"")))
        partial.add_size(frame.payload)
        self._sink.load(snapshot)
        if self.connection.state is ConnectionState.CONNECTING:
            self._set_state(
                ConnectionState.CONNECTING,
                f"the state of the engine at {self.connection.endpoint} is being received",
            )
        if not snapshot.has_parts:
            return partial.frame
        self._partial = partial
        return None

    def _add_part(self, frame: ReplyFrame, part: SnapshotPart) -> ReplyFrame | None:
        partial = self._partial
        same = partial is not None and frame[:2] == partial.frame[:2]
        if partial is None or not same or part.index != partial.next_index:
            return None  # a part was lost, and the whole snapshot will be requested again
        partial.next_index += 1
        partial.add_size(frame.payload)
        self._requested_at = time.monotonic()
        self._sink.load(part)
        if not part.is_last:
            return None
        self._partial = None
        return partial.frame

    def _restore(self, frame: ReplyFrame) -> None:
        self._sink.restore(frame.incarnation, frame.next_number - 1)
        self._received_at = time.monotonic()
        self._incarnation = frame.incarnation
        self._last_number = frame.next_number - 1
        self._is_synced = True
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._set_state(ConnectionState.LIVE)
        pending = self._pending.take()
        for position, message in enumerate(pending):
            if message.incarnation == self._incarnation:
                self._apply(message)
            if not self._is_synced:  # a gap between the pending messages; it is pending again
                for later in pending[position + 1 :]:
                    self._add_pending(later)
                return

    def _poll_timeout_ms(self) -> int | None:
        """Returns the milliseconds until the next time-out, in which `poll` may wait.

        Without an endpoint there is none.
        """
        if not self._wanted:
            return None
        if self._refused_at is None and self._received_at is not None and self._is_synced:
            remaining = self._received_at + SILENCE_SECONDS - time.monotonic()
            return max(_MIN_POLL_MS, int(remaining * 1e3) + 1)
        if not self._is_subscribed:
            remaining = self._asked_at + SECONDS_BETWEEN_SUMMARIES - time.monotonic()
            return max(0, int(max(remaining, 0.0) * 1e3) + 1)
        return _MIN_POLL_MS

    def _check_timeouts(self) -> None:
        if not self._wanted:
            return
        now = time.monotonic()
        if self._refused_at is not None and now - self._refused_at > _RECONNECT_SECONDS:
            self._refused_at = None
            self._reconnect()
        if self._received_at is None:
            if self.connection.state is ConnectionState.CONNECTING and not self.connection.detail:
                self._set_state(
                    ConnectionState.CONNECTING,
                    f"no engine answers at {self.connection.endpoint} yet",
                )
            connected_at = self._handshakes.succeeded_at
            is_silent = connected_at is not None and now - connected_at > SILENCE_SECONDS
            if is_silent and not self._is_subscribed:
                self._has_summaries = False
                self._change_source()
            return
        is_overdue = now - self._requested_at > self._retry_seconds
        if self._is_subscribed and not self._is_synced and is_overdue:
            if self._pending_stop is None:
                self._request_snapshot()
                self._retry_seconds = _RETRY_SECONDS
            elif self.connection.state is not ConnectionState.STOPPED:
                # An engine that has stopped sends no snapshot any more.
                self._set_state(ConnectionState.STOPPED, self._pending_stop)
        silence = now - self._received_at
        if silence > SILENCE_SECONDS and self.connection.state in (
            ConnectionState.LIVE,
            ConnectionState.SYNCING,
        ):
            self._set_state(
                ConnectionState.LOST,
                f"nothing received from {self.connection.endpoint}; waiting for it to return",
            )

    def _explain_foreign(self, error: WireError) -> str:
        if isinstance(error, frames.ProtocolVersionError):
            return str(error)
        return (
            f"the publisher at {self.connection.endpoint} does not send a seqtop stream: {error}"
            " (KV-cache events are shown with --kv-events)"
        )
