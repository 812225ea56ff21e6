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
import uuid
from collections.abc import Callable

import zmq

from seqtop.wire import codec, frames
from seqtop.wire.endpoints import check_bind, snapshot_endpoint
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    Abort,
    Accepted,
    EngineInfo,
    EngineStopped,
    Event,
    Refused,
    Reply,
    Submit,
)
from seqtop.wire.server import Inbox, Mirror, StreamServer

MAX_QUEUED_MESSAGES = 10_000
"""Messages that may wait between the engine and the publisher's thread; more are dropped."""

MAX_VIEWER_BACKLOG = 10_000
"""Messages that may wait for one slow viewer (`ZMQ_SNDHWM`); it then misses some, and heals."""

MAX_COMMAND_BYTES = 2**20
"""The longest question a viewer may ask, a prompt to submit included."""

MAX_PENDING_COMMANDS = 1_000


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

    Raises:
        EndpointError: the endpoint is malformed, or not local and `insecure` is not set.
        PublishError: the endpoint cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        info: EngineInfo,
        mirror: Mirror,
        *,
        insecure: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.endpoint = check_bind(endpoint, insecure=insecure)
        self.num_dropped = 0
        """Messages that found the queue full or could not be encoded."""
        self.last_error: str | None = None
        self._num_unannounced = 0
        self._clock = clock
        self._commands: queue.Queue[tuple[bytes, Submit | Abort]] = queue.Queue(
            MAX_PENDING_COMMANDS
        )
        self._context = zmq.Context()
        try:
            live, router = self._bind(frames.topic(info.incarnation))
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise PublishError(_bind_failure(endpoint, error)) from error
        inbox = self._connect_queue()
        server = StreamServer(live, router, inbox, info, mirror, self._commands, clock)
        self._thread = threading.Thread(target=server.run, name="seqtop-publisher", daemon=True)
        self._thread.start()
        self.publish(info)

    def _bind(self, greeting: bytes) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        live = self._context.socket(zmq.XPUB)  # a PUB that can greet
        live.setsockopt(zmq.XPUB_WELCOME_MSG, greeting)
        live.sndhwm = MAX_VIEWER_BACKLOG
        live.linger = 500
        live.bind(self.endpoint)
        router = self._context.socket(zmq.ROUTER)
        router.linger = 500
        router.maxmsgsize = MAX_COMMAND_BYTES
        router.bind(snapshot_endpoint(self.endpoint))
        return live, router

    def _connect_queue(self) -> zmq.Socket[bytes]:
        """libzmq's own bounded queue between the two threads: a send fits, or fails at once."""
        name = f"inproc://{uuid.uuid4().hex}"
        inbox = self._context.socket(zmq.PULL)
        inbox.rcvhwm = 1
        inbox.bind(name)
        self._outbox = self._context.socket(zmq.PUSH)
        self._outbox.sndhwm = MAX_QUEUED_MESSAGES
        self._outbox.connect(name)
        return inbox

    def publish(self, event: Event) -> None:
        """Send `event` to every viewer. Never blocks and never raises; drops are counted."""
        try:
            payload = codec.encode(event)
            if self._num_unannounced:
                self._send(Inbox.DROPPED, str(self._num_unannounced).encode())
                self._num_unannounced = 0
            self._send(Inbox.EVENT, payload)
        except (WireError, zmq.ZMQError) as error:
            self.num_dropped += 1
            self._num_unannounced += 1
            self.last_error = str(error)

    def commands(self, timeout: float = 0.0) -> list[PendingCommand]:
        """What viewers asked for since the last call; waits up to `timeout` seconds for one."""
        pending: list[PendingCommand] = []
        with contextlib.suppress(queue.Empty):
            while True:
                wait = timeout > 0 and not pending
                identity, command = self._commands.get(wait, timeout if wait else None)
                pending.append(PendingCommand(command, functools.partial(self._answer, identity)))
        return pending

    def close(self, reason: str = "") -> None:
        """Say goodbye and wait until what was published has been handed to the network."""
        if self._outbox.closed:
            return
        self.publish(EngineStopped(time=self._clock(), reason=reason))
        self._outbox.sndtimeo = 1_000
        with contextlib.suppress(zmq.ZMQError):
            self._outbox.send_multipart([Inbox.END])
        self._thread.join(timeout=5)
        self._context.destroy()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, *parts: bytes) -> None:
        self._outbox.send_multipart(parts, zmq.DONTWAIT)

    def _answer(self, identity: bytes, reply: Reply) -> None:
        # Only the server may touch the ROUTER. A full queue loses the answer; the viewer's own
        # timeout covers that.
        with contextlib.suppress(zmq.ZMQError):
            self._send(Inbox.REPLY, identity, codec.encode(reply))


def _bind_failure(endpoint: str, error: zmq.ZMQError) -> str:
    where = f"{endpoint} or {snapshot_endpoint(endpoint)}"
    if error.errno == zmq.EADDRINUSE:
        return f"{where} is already in use; stop what runs there or choose another --bind"
    return f"{where} cannot be bound: {error.strerror}"
