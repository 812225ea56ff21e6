"""A relay between an engine and its viewers that loses, garbles and withholds on command.

It speaks ZeroMQ on both sides, so each fault is done to whole messages, as a broken broker or a
lossy network below it would, and to connections, which it can drop and refuse.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar

import zmq

from seqtop.transport import sockets
from seqtop.transport.endpoints import snapshot_endpoint

Message = list[bytes]


@dataclass(frozen=True)
class Faults:
    """The probabilities of faults of each message; `delay` is in seconds."""

    drop: float = 0.0
    duplicate: float = 0.0
    truncate: float = 0.0
    flip: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0
    """Every message is late by a random part of it, in order."""

    KINDS: ClassVar = ("drop", "duplicate", "truncate", "flip", "reorder", "delay")


HARMLESS = Faults()


class FaultProxy:
    """Relays `engine` to `viewer` endpoints on a thread of its own; a context manager.

    Set `faults` at any time; call `cut`, `mend`, `freeze` and `thaw` from any thread.
    """

    def __init__(self, engine: str, viewer: str, seed: int) -> None:
        self.faults = HARMLESS
        self.counts: Counter[str] = Counter()
        """The number of faults of each kind so far."""
        self._engine, self._viewer = engine, viewer
        self._random = random.Random(seed)
        self._connected = True
        self._frozen = False
        self._context = zmq.Context()
        self._late: deque[tuple[float, zmq.Socket[bytes], Message]] = deque()
        self._held: tuple[zmq.Socket[bytes], Message] | None = None
        self._thread = threading.Thread(target=self._run, name="fault-proxy")
        self._ended = False

    def cut(self) -> None:
        """Break every viewer's connections, and accept none until `mend`."""
        self.counts["cut"] += 1
        self._connected = False

    def mend(self) -> None:
        self._connected = True

    def freeze(self) -> None:
        """Pass nothing on, and let it pile up, until `thaw`."""
        self.counts["freeze"] += 1
        self._frozen = True

    def thaw(self) -> None:
        self._frozen = False

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended = True
        self._thread.join()
        sockets.terminate(self._context)

    def _run(self) -> None:
        while not self._ended:
            if self._connected:
                self._relay()
            else:
                time.sleep(0.005)

    def _relay(self) -> None:
        """Relay until the connection is cut or all is over."""
        up_live = self._open(zmq.XSUB)
        up_live.connect(self._engine)
        down_live = self._open(zmq.XPUB)
        down_live.bind(self._viewer)
        down_questions = self._open(zmq.ROUTER)
        down_questions.bind(snapshot_endpoint(self._viewer))
        upstream: dict[bytes, zmq.Socket[bytes]] = {}  # the engine answers each by its connection
        while self._connected and not self._ended:
            self._send_what_is_due()
            if self._frozen:
                time.sleep(0.002)
                continue
            for message in _waiting(down_live):
                up_live.send_multipart(message)
            for message in _waiting(up_live):
                self._pass(down_live, message)
            for identity, *question in _waiting(down_questions):
                if identity not in upstream:
                    upstream[identity] = self._open(zmq.DEALER)
                    upstream[identity].connect(snapshot_endpoint(self._engine))
                self._pass(upstream[identity], question)
            for identity, socket in upstream.items():
                for answer in _waiting(socket):
                    self._pass(down_questions, answer, envelope=[identity])
            time.sleep(0.001)
        self._late.clear()
        self._held = None
        for socket in (up_live, down_live, down_questions, *upstream.values()):
            socket.close(linger=0)

    def _open(self, kind: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.reconnect_ivl = 10
        return socket

    def _pass(
        self, to: zmq.Socket[bytes], message: Message, envelope: Message | None = None
    ) -> None:
        for copy in self._spoilt(message):
            whole = [*(envelope or []), *copy]
            if self._happens("reorder") and self._held is None:
                self._held = (to, whole)
                continue
            self._late.append((self._due(), to, whole))
        self._send_what_is_due()

    def _spoilt(self, message: Message) -> list[Message]:
        """The messages sent in place of one: none, itself, two of it, or broken ones."""
        if self._happens("drop"):
            return []
        if self._happens("truncate"):
            index = self._random.randrange(len(message))
            cut = message[index][: self._random.randrange(len(message[index]) or 1)]
            return [
                [*message[:index], cut, *message[index + 1 :]][
                    : self._random.choice((index + 1, None))
                ]
            ]
        if self._happens("flip"):
            # In the topic, where it is noticed: TCP and CurveZMQ protect the rest.
            topic = bytearray(message[0])
            if topic:
                topic[self._random.randrange(len(topic))] ^= 1 << self._random.randrange(8)
            return [[bytes(topic), *message[1:]]]
        return [message, message] if self._happens("duplicate") else [message]

    def _happens(self, fault: str) -> bool:
        happens: bool = self._random.random() < getattr(self.faults, fault)
        self.counts[fault] += happens
        return happens

    def _due(self) -> float:
        """The time to send the next message on: not before those that came before it."""
        if not self.faults.delay:
            return 0.0
        self.counts["delay"] += 1
        due = time.monotonic() + self.faults.delay * self._random.random()
        return max(due, self._late[-1][0]) if self._late else due

    def _send_what_is_due(self) -> None:
        sent = False
        while self._late and self._late[0][0] <= time.monotonic():
            _, to, message = self._late.popleft()
            to.send_multipart(message)
            sent = True
        if self._held is not None and (sent or self.faults is HARMLESS):
            to, message = self._held
            self._held = None
            to.send_multipart(message)


def _waiting(socket: zmq.Socket[bytes]) -> list[Message]:
    """All that has arrived."""
    messages = []
    while True:
        try:
            messages.append(socket.recv_multipart(zmq.DONTWAIT))
        except zmq.Again:
            return messages
