"""The publisher's thread: numbers and sends the live stream and answers what viewers ask."""

from __future__ import annotations

import contextlib
import itertools
import queue
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
import zmq

from seqtop.wire import codec, frames, inbox, parse, pieces
from seqtop.wire.inbox import Inbox
from seqtop.wire.keys import EngineKeys
from seqtop.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    EngineInfo,
    Event,
    Heartbeat,
    InFlight,
    Snapshot,
    SnapshotPart,
    Step,
    Submit,
)
from seqtop.wire.questions import QuestionDesk

_MESSAGES_PER_ROUND = 1_000
_SUBSCRIPTIONS_PER_ROUND = 1_000


class Mirror(Protocol):
    """The engine side's copy of the state: fed every event, encoded whole for a snapshot."""

    def apply(self, event: Event | InFlight) -> object: ...


class StreamServer:
    """Owns the sockets, the numbering and the mirror from the moment `run` starts."""

    def __init__(
        self,
        live: zmq.Socket[bytes],
        router: zmq.Socket[bytes],
        queued: Inbox,
        info: EngineInfo,
        mirror: Mirror,
        keys: EngineKeys | None,
        commands: queue.Queue[tuple[bytes, Submit | Abort]],
        clock: Callable[[], float],
    ) -> None:
        self.num_bytes_taken = 0
        """Bytes of messages taken from the queue so far; read by the engine's thread."""
        self._live = live
        self._router = router
        self._inbox = queued
        self._info = info
        self._mirror = mirror
        self._desk = QuestionDesk(router, info, keys, commands, self._encode_snapshot)
        self._clock = clock
        self._next_number = 0
        self._step = -1
        self._last_sent = time.monotonic()

    def run(self) -> None:
        """Serve until the engine's thread ends the inbox."""
        poller = zmq.Poller()
        poller.register(self._inbox.fileno(), zmq.POLLIN)
        poller.register(self._live, zmq.POLLIN)
        serving = True
        while serving:
            # A door that is shut for now is not listened at, or its knocking would wake us.
            is_open = self._desk.seconds_closed() == 0
            poller.register(self._router, zmq.POLLIN if is_open else 0)
            timeout = self._milliseconds_to_wait() if self._inbox.may_sleep() else 0
            ready = dict(poller.poll(timeout))
            self._inbox.awake(was_woken=self._inbox.fileno() in ready)
            serving = self._forward()
            if self._router in ready:
                self._desk.read()
            self._desk.serve()
            if self._live in ready:
                self._skip_subscriptions()
            self._beat_if_idle()
        for socket in (self._live, self._router):
            socket.close()

    def _forward(self) -> bool:
        """Pass on what the engine has queued; return whether there will be more to come.

        Stops after so many messages, so that an engine in a hurry does not keep viewers out.
        """
        for _ in range(_MESSAGES_PER_ROUND):
            item = self._inbox.take()
            if item is None:
                return True
            kind, *rest = item
            if kind == inbox.EVENT:
                self._send(rest[0])
                self.num_bytes_taken += len(rest[0])
            elif kind == inbox.IN_FLIGHT:
                self._mirror.apply(codec.decode(rest[0], InFlight))
                self._desk.has_moved_on()
            elif kind == inbox.REPLY:
                self._desk.reply(*rest)
            elif kind == inbox.DROPPED:
                # A hole in the numbers is how viewers learn that something is missing.
                self._next_number += int(rest[0])
            else:
                return False
        return True

    def _send(self, payload: bytes) -> None:
        self._live.send_multipart(frames.pack(self._info.incarnation, self._next_number, payload))
        self._next_number += 1
        self._last_sent = time.monotonic()
        self._desk.has_moved_on()
        # The mirror reads the bytes that viewers read, so it cannot come to differ from them.
        event = parse.event(payload)
        self._mirror.apply(event)
        if isinstance(event, Step):
            self._step = event.step

    def _milliseconds_to_wait(self) -> int:
        """Until there is something to do without anybody saying so."""
        waits = [self._last_sent + self._info.heartbeat_interval - time.monotonic()]
        if closed := self._desk.seconds_closed():
            waits.append(closed)
        if (until_snapshot := self._desk.seconds_to_snapshot()) is not None:
            waits.append(until_snapshot)
        return max(0, int(min(waits) * 1000) + 1)

    def _beat_if_idle(self) -> None:
        if time.monotonic() - self._last_sent >= self._info.heartbeat_interval:
            self._send(codec.encode(Heartbeat(time=self._clock(), step=self._step)))

    def _skip_subscriptions(self) -> None:
        """Who subscribes and leaves is of no interest, but must be read, or it would pile up."""
        with contextlib.suppress(zmq.Again):
            for _ in range(_SUBSCRIPTIONS_PER_ROUND):
                self._live.recv(zmq.DONTWAIT)

    def _encode_snapshot(self) -> Iterator[list[frames.Buffer]]:
        """The messages that are a snapshot: itself, and its parts if there are any."""
        parts = pieces.cut(self._mirror)
        whole, more = next(parts), next(parts, None)
        snapshot = Snapshot(
            protocol_version=PROTOCOL_VERSION,
            incarnation=self._info.incarnation,
            sequence_number=self._next_number - 1,
            state=msgspec.Raw(whole),
            has_parts=more is not None,
        )
        yield [codec.encode(snapshot)]
        for index in itertools.count():
            if more is None:
                return
            part, more = more, next(parts, None)
            yield [codec.encode(SnapshotPart(index=index, is_last=more is None)), part]
