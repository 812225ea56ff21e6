"""Requests from viewers, handled on the publisher's thread within limits.

Reading requests is limited by number, size and processor time. The requests above the limit wait in
the socket, which reads from all viewers in turn and stops reading from those with too many.
Commands are refused before they are decoded if the viewer may not control the engine. One encoded
snapshot serves all viewers that wait for one. The time until the next snapshot depends on the work
that the last one took.
"""

from __future__ import annotations

import contextlib
import math
import queue
import time
from collections.abc import Callable, Iterable, Sequence

import zmq

from seqtop.transport.curve_keys import EngineKeys
from seqtop.wire import codec, frames, parsing
from seqtop.wire.errors import WireError
from seqtop.wire.message_tag import tag
from seqtop.wire.messages import (
    Abort,
    EngineInfo,
    Refused,
    SnapshotRequest,
    Submit,
    SummaryRequest,
)

REQUESTS_PER_SECOND = 500
BYTES_PER_SECOND = 2**23
PARTS_PER_SECOND = 20_000
MAX_READING_SHARE = 0.02
"""The share of a processor that reading requests may take. The engine waits for the interpreter
meanwhile, and with `MAX_COMMAND_SHARE` of the bundled engine it still keeps 95 % of its steps."""
MAX_REQUEST_SECONDS = 0.1
"""The most processor time that counts for one request. More than that is a garbage collection that
fell into it, and would keep all viewers waiting."""
BURST_SECONDS = 0.128
"""The limits hold on average. After a pause, as much may be read as in this time."""

MAX_REQUEST_BYTES = 1024
"""The largest request for a snapshot. Only commands of viewers that may control are larger."""

MAX_WAITING_VIEWERS = 1_000
"""Viewers that may wait for one snapshot. Others have to request it again."""

MAX_SUMMARY_VIEWERS = 1_000
"""Viewers that are sent the last summary, that of the end, without a request for it."""
SUMMARY_VIEWER_SECONDS = 10.0
"""The time after its last request in which a viewer reads summaries."""

SECONDS_BETWEEN_SNAPSHOTS = 0.05
MAX_ENCODING_SHARE = 0.1
"""The share of a processor that encoding snapshots may take, with pauses for the engine."""
MAX_WALL_SHARE = 0.5
"""The share of time in which the stream may wait for a snapshot. On a busy machine that is longer
than the processor time."""

_CONTROL_TAGS = frozenset(str(command.__struct_config__.tag) for command in (Submit, Abort))


class RequestHandler:
    """Reads requests from `router`, replies, and passes commands on to the engine.

    Args:
        router: The ROUTER socket of the engine.
        info: The description of the engine.
        curve_keys: The engine's CurveZMQ keys, if it has any. They determine which viewers may send
            commands.
        commands: Receives commands for the engine's thread with the identity of the viewer.
        encode_snapshot: Returns a snapshot as one message or, if asked for, in parts.
        encode_summary: Returns a summary; `None` before the first event.
        pack: Returns the frames of a reply.
        on_command: Called after a command has been added to `commands`.
    """

    def __init__(
        self,
        router: zmq.Socket[bytes],
        info: EngineInfo,
        curve_keys: EngineKeys | None,
        commands: queue.Queue[tuple[bytes, Submit | Abort]],
        encode_snapshot: Callable[[bool], Iterable[bytes]],
        encode_summary: Callable[[], bytes | None],
        pack: Callable[[frames.Buffer], list[frames.Buffer]],
        on_command: Callable[[], None] | None = None,
    ) -> None:
        self._router = router
        self._info = info
        self._curve_keys = curve_keys
        self._commands = commands
        self._encode_snapshot = encode_snapshot
        self._encode_summary = encode_summary
        self._pack = pack
        self._on_command = on_command
        self._next_read_at = 0.0
        # Identities of viewers in the order of their requests, and whether they want parts.
        self._waiting_viewers: dict[bytes, bool] = {}
        # Only a snapshot of a single message is reused.
        self._cached_snapshot: list[zmq.Frame] = []
        self._next_snapshot_at = 0.0
        # When each viewer requested a summary, the latest last.
        self._summary_viewers: dict[bytes, float] = {}

    def invalidate_snapshot(self) -> None:
        """Discards the encoded snapshot, because the state has changed."""
        self._cached_snapshot = []

    def seconds_until_readable(self) -> float:
        """Returns the seconds until a request may be read; 0 if one may be read now."""
        return max(0.0, self._next_read_at - time.monotonic())

    def seconds_until_snapshot(self) -> float:
        """Returns the seconds until `send_snapshots` sends one; infinite if no viewer waits."""
        if not self._waiting_viewers:
            return math.inf
        return max(0.0, self._next_snapshot_at - time.monotonic())

    def read(self) -> None:
        """Reads and handles the requests that have arrived, within the limits."""
        while self.seconds_until_readable() == 0:
            started = time.thread_time()
            try:
                identity = self._router.recv(zmq.DONTWAIT)
            except zmq.Again:
                return
            request, num_bytes, num_parts = self._receive_last_part()
            self._handle(identity, request)
            seconds = min(time.thread_time() - started, MAX_REQUEST_SECONDS)
            pause = max(
                1 / REQUESTS_PER_SECOND,
                num_bytes / BYTES_PER_SECOND,
                num_parts / PARTS_PER_SECOND,
                seconds / MAX_READING_SHARE,
            )
            self._next_read_at = max(self._next_read_at, time.monotonic() - BURST_SECONDS) + pause

    def send_snapshots(self) -> None:
        """Sends a snapshot to all viewers that wait for one, if one is due."""
        if not self._waiting_viewers:
            return
        if not self._cached_snapshot and self.seconds_until_snapshot() > 0:
            return
        viewers, self._waiting_viewers = self._waiting_viewers, {}
        if self._cached_snapshot:
            self._send_to_all(viewers, self._cached_snapshot)
            return
        started, cpu_started = time.monotonic(), time.thread_time()
        for with_parts in dict.fromkeys(viewers.values()):
            receivers = [viewer for viewer, wanted in viewers.items() if wanted is with_parts]
            num_messages = 0
            for payload in self._encode_snapshot(with_parts):
                # One copy for all viewers.
                message = [zmq.Frame(frame, copy=True) for frame in self._pack(payload)]
                self._send_to_all(receivers, message)
                num_messages += 1
            self._cached_snapshot = message if num_messages == 1 and with_parts else []
        wall, cpu = time.monotonic() - started, time.thread_time() - cpu_started
        self._next_snapshot_at = started + max(
            SECONDS_BETWEEN_SNAPSHOTS, cpu / MAX_ENCODING_SHARE, wall / MAX_WALL_SHARE
        )

    def has_summary_viewers(self) -> bool:
        """Returns whether a viewer has requested a summary a short time ago."""
        oldest = time.monotonic() - SUMMARY_VIEWER_SECONDS
        while self._summary_viewers and next(iter(self._summary_viewers.values())) < oldest:
            del self._summary_viewers[next(iter(self._summary_viewers))]
        return bool(self._summary_viewers)

    def send_last_summary(self) -> None:
        """Sends a summary to all viewers that read them: the stream has ended."""
        if self.has_summary_viewers() and (payload := self._encode_summary()) is not None:
            for identity in self._summary_viewers:
                self.reply(identity, payload)

    def reply(self, identity: bytes, payload: bytes) -> None:
        """Sends an encoded reply to a viewer."""
        self._send(identity, self._pack(payload))

    def _receive_last_part(self) -> tuple[zmq.Frame, int, int]:
        """Returns the last part of the message being received, and all parts' size and number.

        A request has one part or, from a REQ socket, two. ZeroMQ does not limit their number, so
        the others are discarded one by one.
        """
        request, num_bytes, num_parts = zmq.Frame(), 0, 0
        while self._router.getsockopt(zmq.RCVMORE):
            request = self._router.recv(copy=False)
            num_bytes += len(request)
            num_parts += 1
        return request, num_bytes, num_parts

    def _handle(self, identity: bytes, request: zmq.Frame) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            self._refuse(identity, refusal)
            return
        try:
            command = parsing.command(request.bytes)
        except WireError as error:
            self._refuse(identity, f"the request cannot be read: {error}")
            return
        if isinstance(command, SnapshotRequest):
            if len(self._waiting_viewers) < MAX_WAITING_VIEWERS:
                self._waiting_viewers[identity] = command.with_parts
        elif isinstance(command, SummaryRequest):
            self._send_summary(identity)
        # Checked again: a longer encoding of the tag is not recognised before decoding.
        elif refusal := self._control_refusal(request):
            self._refuse(identity, refusal)
        else:
            self._commands.put_nowait((identity, command))
            if self._on_command is not None:
                self._on_command()

    def _send_summary(self, identity: bytes) -> None:
        if self._summary_viewers.pop(identity, None) is None and (
            len(self._summary_viewers) >= MAX_SUMMARY_VIEWERS
        ):
            del self._summary_viewers[next(iter(self._summary_viewers))]
        self._summary_viewers[identity] = time.monotonic()
        if (payload := self._encode_summary()) is not None:
            self.reply(identity, payload)

    def _refusal(self, request: zmq.Frame) -> str | None:
        """Returns the reason why a request is not even decoded, or `None`."""
        if tag(request.buffer) in _CONTROL_TAGS:
            return self._control_refusal(request)
        if len(request) > MAX_REQUEST_BYTES:
            return f"the request cannot be read: it has {len(request):,} bytes"
        return None

    def _control_refusal(self, request: zmq.Frame) -> str | None:
        """Returns the reason why the sender may not control the engine now, or `None`."""
        if not self._info.control:
            return "this engine does not accept control commands"
        if self._curve_keys is not None and not self._curve_keys.may_control(_public_key(request)):
            return "your key may view this engine, but not control it"
        if self._commands.full():
            return "too many commands are waiting already"
        return None

    def _refuse(self, identity: bytes, error: str) -> None:
        self.reply(identity, codec.encode(Refused(error=error)))

    def _send_to_all(self, identities: Iterable[bytes], message: Sequence[zmq.Frame]) -> None:
        for identity in identities:
            self._send(identity, message)

    def _send(self, identity: bytes, message: Sequence[frames.Buffer | zmq.Frame]) -> None:
        # A viewer that has gone or does not read gets no reply, and runs into its time-out.
        with contextlib.suppress(zmq.ZMQError):
            self._router.send_multipart([identity, *message], zmq.DONTWAIT)


def _public_key(frame: zmq.Frame) -> bytes:
    """Returns the sender's public key in Z85, as verified in the CurveZMQ handshake."""
    key = frame.get("User-Id")
    return key.encode() if isinstance(key, str) else bytes(key)
