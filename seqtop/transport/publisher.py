"""The engine's end of the protocol.

The engine's thread encodes each message and puts it into a bounded queue. A `StreamServer` on a
thread of its own numbers and sends the messages, and answers viewers. So the step loop never waits
for a viewer.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

import zmq

from seqtop.state import EngineState
from seqtop.text.format import shortened
from seqtop.text.sanitize import safe_line
from seqtop.transport import sockets
from seqtop.transport.curve_keys import EngineKeys
from seqtop.transport.endpoints import check_bind, snapshot_endpoint
from seqtop.transport.outbound_queue import (
    OutboundQueue,
    QueuedEvent,
    QueuedReply,
    QueuedSnapshot,
    QueueFullError,
)
from seqtop.transport.stream_server import StreamServer
from seqtop.wire import codec, frames, snapshot_chunks
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    Abort,
    Accepted,
    EngineInfo,
    EngineStopped,
    Event,
    NotPublished,
    Refused,
    Submit,
)
from seqtop.wire.redaction import redact
from seqtop.wire.snapshot import Reply, Snapshot

MAX_QUEUED_MESSAGES = 10_000
"""Messages that may wait between the engine's and the publisher's thread. More are dropped."""

MAX_QUEUED_BYTES = 256 * 2**20
"""The total size of these messages."""

__all__ = ["MessagePublisher", "PendingCommand", "PublishError"]

MAX_VIEWER_BACKLOG = 1_000
"""Messages that may wait for one slow viewer (`ZMQ_SNDHWM`). Beyond, it misses some and resyncs."""

MAX_COMMAND_BYTES = 2**20
"""The size of the largest request, including a prompt to submit."""

MAX_PENDING_COMMANDS = 64
"""Commands that may wait for the engine. More are refused."""

COMMANDS_PER_CALL = 8
"""Commands that `MessagePublisher.commands` returns at once."""

_CLOSE_SECONDS: Final = 5.0
"""The time in which what is queued at the end is sent; a second more for its thread to end."""

_REQUESTS_PER_VIEWER: Final = 16
"""Unread requests of one viewer (`ZMQ_RCVHWM`). More wait at the viewer's end."""

_REPLIES_PER_VIEWER: Final = snapshot_chunks.MAX_CHUNKS + 1
"""Replies that may wait for one viewer (`ZMQ_SNDHWM`): a snapshot and its parts."""

_MAX_SUBSCRIPTION_BYTES: Final = 1024
"""The limit also applies to handshakes, and those of CurveZMQ take more than 256 bytes."""

_SECONDS_BETWEEN_REPAIRS = 1.0

_MAX_REASON: Final = 1_000
"""The longest reason for a refusal, or for a message that is missing, in characters. It may quote
what a viewer sent, or an id."""
_SECONDS_BETWEEN_REASONS: Final = 1.0


class PublishError(Exception):
    """The endpoint could not be bound. The message is one sentence for the user."""


class PendingCommand:
    """A viewer's `Submit` or `Abort`, to be answered once, on the engine's thread.

    Attributes:
        command: The decoded command.
    """

    def __init__(self, command: Submit | Abort, reply: Callable[[Reply], None]) -> None:
        self.command = command
        self._reply = reply

    def accept(self, request_id: str) -> None:
        """Replies that the engine has carried out the command."""
        self._reply(Accepted(request_id=request_id))

    def refuse(self, error: str) -> None:
        """Replies with the reason for a refusal, in one sentence; a very long one is cut off."""
        self._reply(Refused(error=shortened(error, _MAX_REASON)))


class MessagePublisher:
    """Publishes one engine's events at an endpoint, and serves snapshots beside it.

    All methods belong to one thread, the engine's. A context manager closes it.

    Args:
        endpoint: The ZeroMQ endpoint of the live stream.
        info: The description of the engine. If it is `redacted`, text and tokens are removed here.
        replica: An empty state, which will receive all events, for snapshots.
        curve_keys: Encrypts everything and admits only holders of these keys.
        insecure: Allows other machines to connect without keys.
        bind_option: The option or variable that gives the endpoint, for messages.
        repairs: Declares that the caller checks `needs_snapshot`. After a loss, messages are then
            dropped until a `Snapshot` restores the replica.
        gives_away: Declares that events belong to the publisher from `publish` on, and have the
            types that their fields say. The replica then uses them as they are, undecoded.
        on_command: Called on the publisher's thread after a command has come.
        clock: Returns the time of day in seconds since the epoch.

    Attributes:
        endpoint: The endpoint of the live stream.
        num_dropped: Messages that found the queue full, or could not be encoded or decoded.
        last_error: The reason for the last of these.

    Raises:
        EndpointError: The endpoint is malformed, or it is reachable from other machines although
            there are no keys and `insecure` is not set.
        PublishError: The endpoint cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        info: EngineInfo,
        replica: EngineState,
        *,
        curve_keys: EngineKeys | None = None,
        insecure: bool = False,
        bind_option: str = "--bind",
        repairs: bool = False,
        gives_away: bool = False,
        on_command: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.endpoint = check_bind(endpoint, insecure=insecure, has_keys=curve_keys is not None)
        self.num_dropped = 0
        self.last_error: str | None = None
        self._num_unannounced = 0
        self._num_undecodable = 0
        self._num_not_made = 0
        self._unsent_reason: NotPublished | None = None
        self._reason_sent_at = -_SECONDS_BETWEEN_REASONS
        self._repairs = repairs
        self._gives_away = gives_away
        self._redacts = info.redacted
        self._repaired_at = -_SECONDS_BETWEEN_REPAIRS
        self._num_bytes_queued = 0
        self._is_closed = False
        self._clock = clock
        self._commands: queue.Queue[tuple[bytes, Submit | Abort]] = queue.Queue(
            MAX_PENDING_COMMANDS
        )
        for address in (self.endpoint, snapshot_endpoint(self.endpoint)):
            if conflict := sockets.bind_conflict(address):
                raise PublishError(f"{address} {conflict}; {_bind_advice(bind_option)}")
        self._context = zmq.Context()
        self._authenticator = curve_keys.admit(self._context) if curve_keys is not None else None
        try:
            live, router = self._bind(frames.topic(info.incarnation), curve_keys)
        except zmq.ZMQError as error:
            self._terminate(linger=0)
            raise PublishError(_bind_error(self.endpoint, error, bind_option)) from error
        self._outbound_queue = OutboundQueue(MAX_QUEUED_MESSAGES)
        self._server = StreamServer(
            live,
            router,
            self._outbound_queue,
            info,
            replica,
            curve_keys,
            self._commands,
            clock,
            on_command,
        )
        self._thread = threading.Thread(
            target=self._server.run, name="seqtop-publisher", daemon=True
        )
        self._thread.start()
        self.publish(info)

    def _bind(
        self, welcome: bytes, curve_keys: EngineKeys | None
    ) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        live = self._context.socket(zmq.XPUB)  # unlike PUB, it has welcome messages
        live.setsockopt(zmq.XPUB_WELCOME_MSG, welcome)
        live.sndhwm = MAX_VIEWER_BACKLOG
        live.maxmsgsize = _MAX_SUBSCRIPTION_BYTES
        router = self._context.socket(zmq.ROUTER)
        router.maxmsgsize = MAX_COMMAND_BYTES
        router.rcvhwm = _REQUESTS_PER_VIEWER
        router.sndhwm = _REPLIES_PER_VIEWER
        for socket in (live, router):
            socket.linger = 500
            sockets.enable_keepalive(socket)
            if curve_keys is not None:
                curve_keys.secure(socket)
            else:
                sockets.require_handshake(socket)
        live.bind(self.endpoint)
        router.bind(snapshot_endpoint(self.endpoint))
        return live, router

    def publish(self, event: Event | Snapshot) -> None:
        """Sends an event to every viewer. Never blocks and never raises; drops are counted."""
        self._count_undecodable()
        if self._unsent_reason is not None:
            self._send_reason(is_due=isinstance(event, Snapshot | EngineStopped))
        if self._needs_repair and not isinstance(event, Snapshot | EngineStopped):
            self._drop()  # no viewer can interpret it without the messages that were lost
            return
        if isinstance(event, Snapshot):
            self._repaired_at = time.monotonic()
        try:
            event = redact(event) if self._redacts else event
            payload = codec.encode(event)
            if isinstance(event, Snapshot):
                # It is enqueued when the queue is almost empty, and its size does not count. If it
                # did, one larger than the queue would cause the loss that requires the next one.
                self._outbound_queue.put(QueuedSnapshot(payload, self._num_unannounced))
            else:
                self._require_room(len(payload))
                given = event if self._gives_away else None
                self._outbound_queue.put(QueuedEvent(payload, self._num_unannounced, given))
                self._num_bytes_queued += len(payload)
            self._num_unannounced = 0
        except WireError as error:
            self.count_not_made(error)
        except QueueFullError as error:
            self._drop(str(error))

    @property
    def has_viewers(self) -> bool:
        """True while a viewer subscribes to the live stream, or requests summaries."""
        return self._server.num_subscriptions > 0 or self._server.has_summary_viewers

    def count_lost(self, count: int, error: str) -> None:
        """Counts messages that did not reach the caller, as if they had been dropped here."""
        self._drop(error, count)

    def count_not_made(self, error: Exception) -> None:
        """Counts a message that the caller could not make as dropped, and tells viewers why.

        Args:
            error: The reason. What a `WireError` says is public; of others, only the type is.
        """
        if isinstance(error, WireError):
            self._drop_not_made(_sentence(error))
        else:
            self._drop_not_made(type(error).__name__, _sentence(error))
        self._send_reason()

    def needs_snapshot(self) -> bool:
        """Returns whether messages were lost before they were numbered, and there is room again.

        No viewer can interpret what follows such a loss. The engine checks this between two steps
        and then publishes a `Snapshot` of all unfinished requests.
        """
        self._count_undecodable()
        return (
            self._needs_repair
            and 2 * self._num_bytes_waiting <= MAX_QUEUED_BYTES
            and time.monotonic() - self._repaired_at >= _SECONDS_BETWEEN_REPAIRS
        )

    @property
    def _needs_repair(self) -> bool:
        return self._repairs and self._num_unannounced > 0

    @property
    def _num_bytes_waiting(self) -> int:
        return self._num_bytes_queued - self._server.num_bytes_sent

    def _send_reason(self, *, is_due: bool = False) -> None:
        """Publishes why a message could not be made, at most once a second unless it is due.

        Viewers apply it to the state before the gap.
        """
        event, now = self._unsent_reason, time.monotonic()
        if event is None or not (is_due or now - self._reason_sent_at >= _SECONDS_BETWEEN_REASONS):
            return
        payload = codec.encode(redact(event) if self._redacts else event)
        with contextlib.suppress(QueueFullError):  # it is sent with the next message
            self._outbound_queue.put(QueuedEvent(payload))
            self._num_bytes_queued += len(payload)
            self._unsent_reason, self._reason_sent_at = None, now

    def _require_room(self, size: int) -> None:
        frames.check_size(size)
        waiting = self._num_bytes_waiting
        # An empty queue accepts any message: otherwise a large one could never be sent.
        if waiting and waiting + size > MAX_QUEUED_BYTES:
            raise QueueFullError(f"{waiting:,} bytes wait to be sent already")

    def _drop(self, error: str | None = None, count: int = 1) -> None:
        self.num_dropped += count
        self._num_unannounced += count
        self.last_error = error or self.last_error

    def _drop_not_made(self, reason: str, detail: str = "", count: int = 1) -> None:
        self._drop(f"{reason}: {detail}" if detail else reason, count)
        self._num_not_made += count
        self._unsent_reason = NotPublished(
            time=self._clock(), num_messages=self._num_not_made, reason=reason, detail=detail
        )

    def _count_undecodable(self) -> None:
        """Counts messages that the replica could not decode as dropped."""
        if count := self._server.num_undecodable - self._num_undecodable:
            self._num_undecodable += count
            self._drop_not_made(shortened(self._server.last_error, _MAX_REASON), count=count)

    def commands(
        self, timeout: float = 0.0, *, limit: int = COMMANDS_PER_CALL
    ) -> list[PendingCommand]:
        """Returns some of the viewers' commands.

        Args:
            timeout: Seconds to wait for the first command.
            limit: The most commands to return.
        """
        pending: list[PendingCommand] = []
        with contextlib.suppress(queue.Empty):
            while len(pending) < limit:
                wait = timeout > 0 and not pending
                identity, command = self._commands.get(wait, timeout if wait else None)
                pending.append(PendingCommand(command, functools.partial(self._reply, identity)))
        return pending

    def close(self, reason: str = "", *, failed: bool = False) -> None:
        """Publishes `EngineStopped` and waits until all messages are handed to the network.

        What is left after five seconds is not sent: viewers take the engine for lost.

        Args:
            reason: The reason for the end, in one sentence.
            failed: Says that the engine cannot continue.
        """
        if self._is_closed:
            return
        self._is_closed = True
        stopped = EngineStopped(time=self._clock(), reason=reason, failed=failed)
        self.publish(stopped)
        self._outbound_queue.end()
        self._thread.join(_CLOSE_SECONDS)
        self._server.stop()  # its sockets must not be closed under it
        self._thread.join(1.0)
        if not self._thread.is_alive():
            self._outbound_queue.close()
        self._terminate()

    def __enter__(self) -> MessagePublisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reply(self, identity: bytes, reply: Reply) -> None:
        # Only the server may use the ROUTER socket. A full queue loses the reply, and the viewer
        # runs into its time-out.
        with contextlib.suppress(QueueFullError):
            self._outbound_queue.put(QueuedReply(identity, codec.encode(reply)))

    def _terminate(self, linger: int | None = None) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
        sockets.terminate(self._context, linger=linger)


def _sentence(error: Exception) -> str:
    """Returns what an exception says, of limited length and without control characters."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - whatever it is, the engine runs on
        return ""
    return safe_line(text)[:_MAX_REASON]


def _bind_advice(option: str) -> str:
    return f"stop what runs there or choose another {option}"


def _bind_error(endpoint: str, error: zmq.ZMQError, option: str) -> str:
    endpoints = f"{endpoint} or {snapshot_endpoint(endpoint)}"
    if error.errno == zmq.EADDRINUSE:
        return f"{endpoints} is already in use; {_bind_advice(option)}"
    return f"{endpoints} cannot be bound: {error.strerror}"
