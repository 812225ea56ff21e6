"""The engine's end of the wire.

The engine's thread only encodes a message and hands it to a bounded queue; `StreamServer`, on a
thread of its own, numbers and sends it and talks to the viewers. So nothing a viewer does, or
fails to do, is ever waited for in the step loop.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable

import zmq

from seqtop.transport import closing, outbound_queue
from seqtop.transport.bind_check import in_the_way
from seqtop.transport.curve_keys import EngineKeys
from seqtop.transport.endpoints import check_bind, snapshot_endpoint
from seqtop.transport.keepalive import keep_alive
from seqtop.transport.outbound_queue import OutboundQueue, QueueFullError
from seqtop.transport.stream_server import Replica, StreamServer
from seqtop.wire import codec, frames, snapshot_chunks
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    Abort,
    Accepted,
    EngineInfo,
    EngineStopped,
    Event,
    InFlight,
    Refused,
    Reply,
    Submit,
)
from seqtop.wire.redaction import redact

MAX_QUEUED_MESSAGES = 10_000
"""Messages that may wait between the engine and the publisher's thread; more are dropped."""

MAX_QUEUED_BYTES = 256 * 2**20
"""What these may take together."""

MAX_VIEWER_BACKLOG = 1_000
"""Messages that may wait for one slow viewer (`ZMQ_SNDHWM`); it then misses some, and heals."""

MAX_COMMAND_BYTES = 2**20
"""The longest question a viewer may ask, a prompt to submit included."""

MAX_PENDING_COMMANDS = 64
"""Commands that may wait for the engine; more are refused."""

COMMANDS_AT_ONCE = 8
"""Of these, what the engine is given between two steps."""

_QUESTIONS_PER_VIEWER = 16
"""Unread questions that are kept of a viewer (`ZMQ_RCVHWM`), before its own side has to wait."""

_ANSWERS_PER_VIEWER = snapshot_chunks.MAX_PARTS + 1
"""Answers that may wait for a viewer (`ZMQ_SNDHWM`): a snapshot and its parts."""

_MAX_SUBSCRIPTION_BYTES = 1024
"""Handshakes count as well, and Curve's take more than 256."""

_SECONDS_BETWEEN_REPAIRS = 1.0

_MADE_LATER_BYTES = 16 * 2**10
"""What an event counts as in the queue that has not been made yet."""

_MOST_BYTES_DOZING = 2**20
"""What may be in the queue without waking the publisher's thread from a doze."""


class PublishError(Exception):
    """The endpoint could not be bound; `str()` is one sentence for the user."""


class PendingCommand:
    """A viewer's `Submit` or `Abort`, to be answered once, on the engine's thread."""

    def __init__(self, command: Submit | Abort, answer: Callable[[Reply], None]) -> None:
        self.command = command
        self._answer = answer

    def accept(self, request_id: str) -> None:
        self._answer(Accepted(request_id=request_id))

    def refuse(self, error: str) -> None:
        """Say in one sentence why not."""
        self._answer(Refused(error=error))


class Publisher:
    """Publishes one engine's events at `endpoint`, and its snapshots beside it.

    All methods belong to one thread, the engine's. A context manager; leaving it closes.

    Args:
        info: Who is speaking. If it says `redacted`, all texts and tokens are taken out here.
        mirror: An empty state, to be kept up for snapshots.
        keys: Let nobody in but holders of these keys, and encrypt everything.
        insecure: Allow other machines to connect without keys.
        repairs: The caller watches `wants_in_flight`. Then messages that follow on a loss are
            dropped until an `InFlight` makes sense of them again.
        clock: Time of day, in seconds since the epoch.

    Raises:
        EndpointError: the endpoint is malformed, or not local, without keys and not `insecure`.
        PublishError: the endpoint cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        info: EngineInfo,
        mirror: Replica,
        *,
        keys: EngineKeys | None = None,
        insecure: bool = False,
        repairs: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.endpoint = check_bind(endpoint, insecure=insecure, has_keys=keys is not None)
        self.num_dropped = 0
        """Messages that found the queue full or could not be encoded."""
        self.last_error: str | None = None
        self._num_unannounced = 0
        self._num_lost = 0
        """Of what was dropped, what the publisher's thread could not make."""
        self._repairs = repairs
        self._redacts = info.redacted
        self._repaired_at = -_SECONDS_BETWEEN_REPAIRS
        self._num_bytes_queued = 0
        self._is_closed = False
        self._clock = clock
        self._commands: queue.Queue[tuple[bytes, Submit | Abort]] = queue.Queue(
            MAX_PENDING_COMMANDS
        )
        for each in (self.endpoint, snapshot_endpoint(self.endpoint)):
            if reason := in_the_way(each):
                raise PublishError(f"{each} {reason}; {_ELSEWHERE}")
        self._context = zmq.Context()
        self._authenticator = keys.admit(self._context) if keys is not None else None
        try:
            live, router = self._bind(frames.topic(info.incarnation), keys)
        except zmq.ZMQError as error:
            self._end_context(linger=0)
            raise PublishError(_bind_failure(endpoint, error)) from error
        self._inbox = OutboundQueue(MAX_QUEUED_MESSAGES)
        self._server = StreamServer(
            live, router, self._inbox, info, mirror, keys, self._commands, clock
        )
        self._thread = threading.Thread(
            target=self._server.run, name="seqtop-publisher", daemon=True
        )
        self._thread.start()
        self.publish(info)

    def _bind(
        self, greeting: bytes, keys: EngineKeys | None
    ) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        live = self._context.socket(zmq.XPUB)  # a PUB that can greet
        live.setsockopt(zmq.XPUB_WELCOME_MSG, greeting)
        live.sndhwm = MAX_VIEWER_BACKLOG
        live.maxmsgsize = _MAX_SUBSCRIPTION_BYTES
        router = self._context.socket(zmq.ROUTER)
        router.maxmsgsize = MAX_COMMAND_BYTES
        router.rcvhwm = _QUESTIONS_PER_VIEWER
        router.sndhwm = _ANSWERS_PER_VIEWER
        for socket in (live, router):
            socket.linger = 500
            keep_alive(socket)
            if keys is not None:
                keys.secure(socket)
        live.bind(self.endpoint)
        router.bind(snapshot_endpoint(self.endpoint))
        return live, router

    def publish(self, event: Event | InFlight) -> None:
        """Send `event` to every viewer. Never blocks and never raises; drops are counted."""
        self._look_for_losses()
        # What follows makes sense to nobody if what came before is lost.
        if self._is_waiting_for_repair and not isinstance(event, InFlight):
            self._drop()
        else:
            self._publish(event)

    @property
    def has_listeners(self) -> bool:
        """Whether anybody subscribes to anything."""
        return self._server.num_topics_heard > 0

    def publish_later(self, make: Callable[[], Event]) -> None:
        """Send what `make` returns, in its turn. Never blocks and never raises; drops are counted.

        It is called on the publisher's thread, so it may read only what nobody changes any more.
        An engine's thread has better things to do: right after a forward pass nothing of what it
        would have to look at, code included, is in the processor's caches.
        """
        self._look_for_losses()
        if self._is_waiting_for_repair:
            self._drop()
        else:
            self._queue(_MADE_LATER_BYTES, outbound_queue.LATER, make, _MADE_LATER_BYTES)

    def wants_in_flight(self) -> bool:
        """Whether messages were lost before they had a number, and there is room again.

        What follows on a hole cannot be understood without what was in it. So an engine asks this
        between two steps, and answers by publishing an `InFlight`.
        """
        return (
            self._is_waiting_for_repair
            and 2 * self._num_bytes_waiting <= MAX_QUEUED_BYTES
            and time.monotonic() - self._repaired_at >= _SECONDS_BETWEEN_REPAIRS
        )

    @property
    def _is_waiting_for_repair(self) -> bool:
        return self._repairs and self._num_unannounced > 0

    @property
    def _num_bytes_waiting(self) -> int:
        return self._num_bytes_queued - self._server.num_bytes_taken

    def _publish(self, event: Event | InFlight) -> None:
        is_live = not isinstance(event, InFlight)
        if not is_live:
            self._repaired_at = time.monotonic()
        try:
            payload = codec.encode(redact(event) if self._redacts else event)
            # An `InFlight` is sent to an almost empty queue and does not count: were it larger than
            # the queue, everything behind it would be dropped, and the next one sent for that.
            size = len(payload) if is_live else 0
        except WireError as error:
            self._drop(str(error))
        else:
            self._queue(
                size, outbound_queue.EVENT if is_live else outbound_queue.IN_FLIGHT, payload
            )

    def _queue(self, size: int, *item: object) -> None:
        """Hand an item that counts as so many bytes over to the publisher's thread."""
        try:
            self._require_room(size)
            if self._num_unannounced:
                self._inbox.put(outbound_queue.DROPPED, self._num_unannounced)
                self._num_unannounced = 0
            is_urgent = item[0] is outbound_queue.IN_FLIGHT or (
                self._num_bytes_waiting + size > _MOST_BYTES_DOZING
            )
            self._inbox.put(*item, is_urgent=is_urgent)
            self._num_bytes_queued += size
        except (WireError, QueueFullError) as error:
            self._drop(str(error))

    def _require_room(self, size: int) -> None:
        """Refuse a message of so many bytes; 0 is always taken."""
        frames.check_size(size)
        waiting = self._num_bytes_queued - self._server.num_bytes_taken
        # Alone, anything goes: it could never be sent otherwise.
        if size and waiting and waiting + size > MAX_QUEUED_BYTES:
            raise WireError(f"{waiting:,} bytes wait to be sent already")

    def _drop(self, why: str | None = None, count: int = 1) -> None:
        self.num_dropped += count
        self._num_unannounced += count
        self.last_error = why or self.last_error

    def _look_for_losses(self) -> None:
        """Count what could not be made on the publisher's thread among what was dropped."""
        if lost := self._server.num_lost - self._num_lost:
            self._num_lost += lost
            self._drop(self._server.last_error, lost)

    def commands(self, timeout: float = 0.0) -> list[PendingCommand]:
        """Some of what viewers asked for; waits up to `timeout` seconds for the first."""
        pending: list[PendingCommand] = []
        with contextlib.suppress(queue.Empty):
            while len(pending) < COMMANDS_AT_ONCE:
                wait = timeout > 0 and not pending
                identity, command = self._commands.get(wait, timeout if wait else None)
                pending.append(PendingCommand(command, functools.partial(self._answer, identity)))
        return pending

    def close(self, reason: str = "") -> None:
        """Say goodbye and wait until what was published has been handed to the network."""
        if self._is_closed:
            return
        self._is_closed = True
        self._publish(EngineStopped(time=self._clock(), reason=reason))
        self._inbox.end()
        self._thread.join(timeout=5)
        if not self._thread.is_alive():
            self._inbox.close()
        self._end_context()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self, identity: bytes, reply: Reply) -> None:
        # Only the server may touch the ROUTER. A full queue loses the answer; the viewer's own
        # timeout covers that.
        with contextlib.suppress(QueueFullError):
            self._inbox.put(outbound_queue.REPLY, identity, codec.encode(reply))

    def _end_context(self, linger: int | None = None) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
        closing.end(self._context, linger=linger)


_ELSEWHERE = "stop what runs there or choose another --bind"


def _bind_failure(endpoint: str, error: zmq.ZMQError) -> str:
    where = f"{endpoint} or {snapshot_endpoint(endpoint)}"
    if error.errno == zmq.EADDRINUSE:
        return f"{where} is already in use; {_ELSEWHERE}"
    return f"{where} cannot be bound: {error.strerror}"
