"""The publisher's thread: numbers and sends the live stream and answers what viewers ask."""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
import zmq

from seqtop.transport import outbound_queue
from seqtop.transport.curve_keys import EngineKeys
from seqtop.transport.outbound_queue import OutboundQueue
from seqtop.transport.request_handler import RequestHandler
from seqtop.wire import codec, frames, parsing, snapshot_chunks
from seqtop.wire.errors import WireError
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
from seqtop.wire.redaction import redact

_MESSAGES_PER_ROUND = 1_000
_SUBSCRIPTIONS_PER_ROUND = 1_000

SECONDS_BETWEEN_ROUNDS = 0.025
"""What is published within so much time goes out together. Screens are painted no more often, and
a thread that is woken at the end of each step wants the interpreter's lock just when the engine's
thread does; by itself, it wakes up in a forward pass more often than not."""

SECONDS_UNTIL_SLEEP = 1.0
"""After so long a rest, the thread is woken by what is published next."""

SECONDS_BETWEEN_REFLECTIONS = 0.25
"""How often the mirror is brought up to date, unless somebody looks into it."""

MAX_UNREFLECTED_BYTES = 2**20
"""What may wait for that."""

_SECONDS_AT_A_TIME = 0.0002
"""How long the interpreter's lock is kept from the engine's thread, but for a longer message."""
_SECONDS_TO_GIVE_WAY = 0.00005
"""Long enough for a thread that waits for the lock to get it."""


class Replica(Protocol):
    """The engine side's copy of the state: fed every event, encoded whole for a snapshot."""

    def apply(self, event: Event | InFlight) -> object: ...


class StreamServer:
    """Owns the sockets, the numbering and the mirror from the moment `run` starts."""

    def __init__(
        self,
        live: zmq.Socket[bytes],
        router: zmq.Socket[bytes],
        queued: OutboundQueue,
        info: EngineInfo,
        mirror: Replica,
        keys: EngineKeys | None,
        commands: queue.Queue[tuple[bytes, Submit | Abort]],
        clock: Callable[[], float],
    ) -> None:
        self.num_bytes_taken = 0
        """Bytes of messages taken from the queue so far; read by the engine's thread."""
        self.num_lost = 0
        """Events that could not be made."""
        self.last_error: str | None = None
        """Why the last of them could not."""
        self.num_topics_heard = 0
        """Topics that somebody subscribes to; any of them may be the stream's."""
        self._live = live
        self._router = router
        self._inbox = queued
        self._info = info
        self._mirror = mirror
        self._desk = RequestHandler(router, info, keys, commands, self._encode_snapshot)
        self._clock = clock
        self._next_number = 0
        self._step = -1
        self._unreflected: list[bytes] = []
        """Messages that the mirror has yet to be told of."""
        self._num_unreflected_bytes = 0
        self._last_sent = self._last_reflection = time.monotonic()
        self._last_taken = -math.inf
        self._busy_since = time.monotonic()

    @property
    def _is_heard(self) -> bool:
        return self.num_topics_heard > 0

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
            ready = self._wait(poller)
            serving = self._forward()
            if self._seconds_to_reflection() == 0:
                self._reflect()
            if self._router in ready:
                self._desk.read()
            self._desk.serve()
            if self._live in ready:
                self._count_subscriptions()
            self._beat_if_idle()
        for socket in (self._live, self._router):
            socket.close()

    def _wait(self, poller: zmq.Poller) -> set[object]:
        """Sleep until there is something to do; return what can be read."""
        timeout = self._milliseconds_to_wait()
        rested = time.monotonic() - self._last_taken
        if rested < SECONDS_UNTIL_SLEEP and self._inbox.may_doze():
            # If nobody listens, there is nothing to do but bring the mirror up to date.
            pause = SECONDS_BETWEEN_ROUNDS if self._is_heard else SECONDS_BETWEEN_REFLECTIONS
            timeout = min(timeout, int(pause * 1000))
        elif not self._inbox.may_sleep():
            timeout = 0
        ready: set[object] = {readable for readable, _ in poller.poll(timeout)}
        self._inbox.awake(was_woken=self._inbox.fileno() in ready)
        self._busy_since = time.monotonic()
        return ready

    def _give_way(self) -> None:
        """Let the engine's thread have the interpreter's lock, if it is time."""
        if time.monotonic() - self._busy_since > _SECONDS_AT_A_TIME:
            time.sleep(_SECONDS_TO_GIVE_WAY)
            self._busy_since = time.monotonic()

    def _forward(self) -> bool:
        """Pass on what the engine has queued; return whether there will be more to come.

        Stops after so many messages, so that an engine in a hurry does not keep viewers out.
        """
        for _ in range(_MESSAGES_PER_ROUND):
            item = self._inbox.take()
            if item is None:
                return True
            self._last_taken = time.monotonic()
            self._give_way()
            kind, *rest = item
            if kind == outbound_queue.EVENT:
                self._send(rest[0])
                self.num_bytes_taken += len(rest[0])
            elif kind == outbound_queue.LATER:
                make, size = rest
                self._make(make)
                self.num_bytes_taken += size
            elif kind == outbound_queue.IN_FLIGHT:
                self._reflect()
                self._mirror.apply(codec.decode(rest[0], InFlight))
                self._desk.has_moved_on()
            elif kind == outbound_queue.REPLY:
                self._desk.reply(*rest)
            elif kind == outbound_queue.DROPPED:
                # A hole in the numbers is how viewers learn that something is missing.
                self._next_number += rest[0]
            else:
                return False
        return True

    def _make(self, make: Callable[[], Event]) -> None:
        """Send an event that has yet to be made."""
        try:
            event = make()
            payload = codec.encode(redact(event) if self._info.redacted else event)
            frames.check_size(len(payload))
        except Exception as error:  # noqa: BLE001 - it is counted, and viewers are not kept waiting
            self._lose(error)
        else:
            self._send(payload)

    def _lose(self, error: Exception) -> None:
        """The publisher makes the hole known, and asks the engine for what is right."""
        self.last_error = str(error)
        self.num_lost += 1

    def _send(self, payload: bytes) -> None:
        self._live.send_multipart(frames.pack(self._info.incarnation, self._next_number, payload))
        self._next_number += 1
        self._last_sent = time.monotonic()
        self._desk.has_moved_on()
        self._unreflected.append(payload)
        self._num_unreflected_bytes += len(payload)

    def _seconds_to_reflection(self) -> float:
        if not self._unreflected:
            return math.inf
        if self._num_unreflected_bytes > MAX_UNREFLECTED_BYTES:
            return 0.0
        return max(0.0, self._last_reflection + SECONDS_BETWEEN_REFLECTIONS - time.monotonic())

    def _reflect(self) -> None:
        """Bring the mirror up to date; many messages at once take much less time each."""
        for payload in self._unreflected:
            self._give_way()
            try:
                # The bytes that viewers read, so that it cannot come to differ from them.
                event = parsing.event(payload)
            except WireError as error:
                self._lose(error)
                continue
            self._mirror.apply(event)
            if isinstance(event, Step):
                self._step = event.step
        self._unreflected.clear()
        self._num_unreflected_bytes = 0
        self._last_reflection = time.monotonic()

    def _milliseconds_to_wait(self) -> int:
        """Until there is something to do without anybody saying so."""
        waits = [self._last_sent + self._info.heartbeat_interval - time.monotonic()]
        waits.append(self._seconds_to_reflection())
        if closed := self._desk.seconds_closed():
            waits.append(closed)
        if (until_snapshot := self._desk.seconds_to_snapshot()) is not None:
            waits.append(until_snapshot)
        return max(0, int(min(waits) * 1000) + 1)

    def _beat_if_idle(self) -> None:
        if time.monotonic() - self._last_sent >= self._info.heartbeat_interval:
            self._reflect()
            self._send(codec.encode(Heartbeat(time=self._clock(), step=self._step)))

    def _count_subscriptions(self) -> None:
        """Of each topic, the first to subscribe is heard of, and the last to leave.

        Anybody can say that he leaves who never came. So nothing but the length of a pause follows
        from the count.
        """
        with contextlib.suppress(zmq.Again):
            for _ in range(_SUBSCRIPTIONS_PER_ROUND):
                change = self._live.recv(zmq.DONTWAIT)
                if change[:1] in (b"\0", b"\1"):  # anything else is a message of the viewer's own
                    self.num_topics_heard += 1 if change[0] else -(self.num_topics_heard > 0)

    def _encode_snapshot(self) -> Iterator[list[frames.Buffer]]:
        """The messages that are a snapshot: itself, and its parts if there are any."""
        self._reflect()
        parts = snapshot_chunks.cut(self._mirror)
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
