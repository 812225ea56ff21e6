"""The publisher's thread: numbers and sends the live stream and answers what viewers ask."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import zmq

from seqtop.wire import codec, frames, parse
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Command,
    EngineInfo,
    Event,
    Heartbeat,
    Refused,
    Reply,
    Snapshot,
    SnapshotRequest,
    Step,
    Submit,
)

_QUESTIONS_PER_ROUND = 64


class Inbox:
    """First frame of what the engine's thread hands over."""

    EVENT = b"E"
    """Followed by an encoded event."""
    DROPPED = b"D"
    """Followed by how many events were dropped here, in ASCII digits."""
    REPLY = b"R"
    """Followed by a viewer's identity and an encoded reply."""
    END = b"."


class Mirror(Protocol):
    """The engine side's copy of the state: fed every event, encoded whole for a snapshot."""

    def apply(self, event: Event) -> object: ...


class StreamServer:
    """Owns the sockets, the numbering and the mirror from the moment `run` starts."""

    def __init__(
        self,
        live: zmq.Socket[bytes],
        router: zmq.Socket[bytes],
        inbox: zmq.Socket[bytes],
        info: EngineInfo,
        mirror: Mirror,
        commands: queue.Queue[tuple[bytes, Submit | Abort]],
        clock: Callable[[], float],
    ) -> None:
        self._live = live
        self._router = router
        self._inbox = inbox
        self._info = info
        self._mirror = mirror
        self._commands = commands
        self._clock = clock
        self._next_number = 0
        self._step = -1
        self._last_sent = time.monotonic()
        self._snapshot: bytes | None = None
        """The encoded answer to a snapshot request, until the next message makes it old."""

    def run(self) -> None:
        """Serve until the engine's thread sends `Inbox.END`."""
        poller = zmq.Poller()
        poller.register(self._inbox, zmq.POLLIN)
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._live, zmq.POLLIN)
        serving = True
        while serving:
            ready = dict(poller.poll(self._milliseconds_to_heartbeat()))
            if self._inbox in ready:
                serving = self._forward()
            if self._router in ready:
                self._answer_some()
            if self._live in ready:
                self._live.recv()  # who subscribes and leaves is of no interest, but must be read
            self._beat_if_idle()
        for socket in (self._live, self._router, self._inbox):
            socket.close()

    def _forward(self) -> bool:
        """Pass on everything the engine has queued; return whether there is more to come."""
        while True:
            try:
                kind, *rest = self._inbox.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return True
            if kind == Inbox.EVENT:
                self._send(rest[0])
            elif kind == Inbox.REPLY:
                self._reply(*rest)
            elif kind == Inbox.DROPPED:
                # A hole in the numbers is how viewers learn that something is missing.
                self._next_number += int(rest[0])
            else:
                return False

    def _send(self, payload: bytes) -> None:
        self._live.send_multipart(frames.pack(self._info.incarnation, self._next_number, payload))
        self._next_number += 1
        self._last_sent = time.monotonic()
        self._snapshot = None
        # The mirror reads the bytes that viewers read, so it cannot come to differ from them.
        event = parse.event(payload)
        self._mirror.apply(event)
        if isinstance(event, Step):
            self._step = event.step

    def _milliseconds_to_heartbeat(self) -> int:
        due = self._last_sent + self._info.heartbeat_interval
        return max(0, int((due - time.monotonic()) * 1000) + 1)

    def _beat_if_idle(self) -> None:
        if time.monotonic() - self._last_sent >= self._info.heartbeat_interval:
            self._send(codec.encode(Heartbeat(time=self._clock(), step=self._step)))

    def _answer_some(self) -> None:
        """Take a bounded number of questions, so that a flood cannot hold up the stream."""
        for _ in range(_QUESTIONS_PER_ROUND):
            try:
                identity, *rest = self._router.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                command = parse.command(rest[-1] if rest else b"")
            except WireError as error:
                self._refuse(identity, f"the request cannot be read: {error}")
            else:
                self._answer(identity, command)

    def _answer(self, identity: bytes, command: Command) -> None:
        if isinstance(command, SnapshotRequest):
            self._answer_with_snapshot(identity, command)
        elif not self._info.control:
            self._refuse(identity, "this engine does not accept control commands")
        else:
            try:
                self._commands.put_nowait((identity, command))
            except queue.Full:
                self._refuse(identity, "too many commands are waiting already")

    def _answer_with_snapshot(self, identity: bytes, request: SnapshotRequest) -> None:
        if request.protocol_version != PROTOCOL_VERSION:
            self._refuse(
                identity,
                f"this engine speaks version {PROTOCOL_VERSION} of the seqtop protocol,"
                f" the viewer version {request.protocol_version}",
            )
            return
        if self._snapshot is None:
            reply: Reply = Snapshot(
                protocol_version=PROTOCOL_VERSION,
                incarnation=self._info.incarnation,
                sequence_number=self._next_number - 1,
                state=msgspec.Raw(codec.encode(self._mirror)),
            )
            self._snapshot = codec.encode(reply)
        self._reply(identity, self._snapshot)

    def _refuse(self, identity: bytes, error: str) -> None:
        self._reply(identity, codec.encode(Refused(error=error)))

    def _reply(self, identity: bytes, payload: bytes) -> None:
        # A viewer that has gone, or does not read, gets no answer; its own timeout tells it.
        with contextlib.suppress(zmq.ZMQError):
            self._router.send_multipart([identity, *frames.seal([payload])], zmq.DONTWAIT)
