"""What viewers ask an engine: answered on the publisher's thread, so much of it and no more.

Whoever floods this door spends its own share. Reading questions is rationed by number and size;
those over the ration wait in the socket, which takes turns among viewers and stops reading from
those who are ahead. A snapshot is encoded once for all who wait for one, and then not again for a
multiple of the work that it was, and for as long as the stream has waited meanwhile.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterable, Sequence

import zmq

from seqtop.transport.curve_keys import EngineKeys
from seqtop.transport.token_bucket import TokenBucket
from seqtop.wire import codec, frames, parsing
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    Command,
    EngineInfo,
    Refused,
    SnapshotRequest,
    Submit,
)

QUESTIONS_PER_SECOND = 500.0
QUESTIONS_AT_ONCE = 64
BYTES_PER_QUESTION = 16 * 1024
"""A longer question counts as several."""

MAX_WAITING_VIEWERS = 1_000
"""Viewers that may wait for one snapshot; the others have to ask again."""

SECONDS_BETWEEN_SNAPSHOTS = 0.05
SNAPSHOT_SHARE = 0.1
"""Part of a processor that encoding snapshots may take."""
WAITING_SHARE = 0.5
"""Part of the time that the stream may wait for it: longer than it takes, where others want the
processor, too."""


class RequestHandler:
    """Reads `router`, answers for the engine, and passes commands on to it.

    Args:
        keys: Who may control the engine, if keys say so.
        commands: Where commands for the engine's thread go, with whom to answer.
        encode_snapshot: Makes a `Snapshot` and its parts, one message after the other.
    """

    def __init__(
        self,
        router: zmq.Socket[bytes],
        info: EngineInfo,
        keys: EngineKeys | None,
        commands: queue.Queue[tuple[bytes, Submit | Abort]],
        encode_snapshot: Callable[[], Iterable[Sequence[frames.Buffer]]],
    ) -> None:
        self._router = router
        self._info = info
        self._keys = keys
        self._commands = commands
        self._encode_snapshot = encode_snapshot
        self._ration = TokenBucket(QUESTIONS_PER_SECOND, QUESTIONS_AT_ONCE)
        self._waiting: dict[bytes, None] = {}
        """Viewers that wait for a snapshot, by their identities."""
        self._snapshot: list[zmq.Frame] = []
        """The last one, until the next message makes it old, if it is a single message."""
        self._next_snapshot = 0.0

    def has_moved_on(self) -> None:
        """The state has changed: what was encoded of it is old."""
        self._snapshot = []

    def seconds_closed(self) -> float:
        """How long no question may be read; 0 if some may be now."""
        return self._ration.seconds_to_go()

    def seconds_to_snapshot(self) -> float | None:
        """How long until `serve` has a snapshot to send; `None` if nobody waits for one."""
        return max(0.0, self._next_snapshot - time.monotonic()) if self._waiting else None

    def read(self) -> None:
        """Read and answer what there is, as far as the ration goes."""
        while self._ration.seconds_to_go() == 0:
            try:
                parts = self._router.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            identity, question = parts[0].bytes, parts[-1] if len(parts) > 1 else zmq.Frame()
            self._ration.spend(1 + len(question) // BYTES_PER_QUESTION)
            try:
                command = parsing.command(question.bytes)
            except WireError as error:
                self.refuse(identity, f"the request cannot be read: {error}")
            else:
                self._take(identity, command, question)

    def serve(self) -> None:
        """Send snapshots to those who wait for them, if it is time."""
        if not self._waiting or not (self._snapshot or self.seconds_to_snapshot() == 0):
            return
        waiting, self._waiting = self._waiting, {}
        if self._snapshot:
            self._send_to(waiting, self._snapshot)
            return
        started, worked = time.monotonic(), time.thread_time()
        num_messages = 0
        for message in self._encode_snapshot():
            # Copied once, for however many: what it is made in can then be used for the next.
            self._snapshot = [zmq.Frame(each, copy=True) for each in frames.seal(message)]
            self._send_to(waiting, self._snapshot)
            num_messages += 1
        if num_messages > 1:
            self._snapshot = []
        took, work = time.monotonic() - started, time.thread_time() - worked
        self._next_snapshot = started + max(
            SECONDS_BETWEEN_SNAPSHOTS, work / SNAPSHOT_SHARE, took / WAITING_SHARE
        )

    def _send_to(self, identities: Iterable[bytes], message: Sequence[zmq.Frame]) -> None:
        for identity in identities:
            self._send(identity, message)

    def refuse(self, identity: bytes, error: str) -> None:
        self.reply(identity, codec.encode(Refused(error=error)))

    def reply(self, identity: bytes, payload: bytes) -> None:
        self._send(identity, frames.seal([payload]))

    def _take(self, identity: bytes, command: Command, question: zmq.Frame) -> None:
        if isinstance(command, SnapshotRequest):
            self._wants_snapshot(identity, command)
        elif not self._info.control:
            self.refuse(identity, "this engine does not accept control commands")
        elif self._keys is not None and not self._keys.may_control(_key(question)):
            self.refuse(identity, "your key may look at this engine, but not control it")
        else:
            try:
                self._commands.put_nowait((identity, command))
            except queue.Full:
                self.refuse(identity, "too many commands are waiting already")

    def _wants_snapshot(self, identity: bytes, request: SnapshotRequest) -> None:
        if request.protocol_version != PROTOCOL_VERSION:
            self.refuse(
                identity,
                f"this engine speaks version {PROTOCOL_VERSION} of the seqtop protocol,"
                f" the viewer version {request.protocol_version}",
            )
        elif len(self._waiting) < MAX_WAITING_VIEWERS:
            self._waiting[identity] = None

    def _send(self, identity: bytes, answer: Sequence[frames.Buffer | zmq.Frame]) -> None:
        # A viewer that has gone, or does not read, gets no answer; its own timeout tells it.
        with contextlib.suppress(zmq.ZMQError):
            self._router.send_multipart([identity, *answer], zmq.DONTWAIT)


def _key(frame: zmq.Frame) -> bytes:
    """The public key of whoever sent `frame`, in Z85, as it was proved in the handshake."""
    key = frame.get("User-Id")
    return key.encode() if isinstance(key, str) else bytes(key)
