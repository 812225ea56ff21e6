"""Checks of a publisher against the protocol, for its author (`seqtop check --protocol`).

A viewer repairs what it can. This reader reports it: it decodes each message, whether or not there
is a state to apply it to, joins again and again, on a connection that it has and on new ones, and
compares each snapshot with the state that the messages have led to.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import zmq

from seqtop.checks.gate import Gate
from seqtop.checks.message_rules import (
    FRAMES,
    IGNORED,
    NOT_PUBLISHED,
    SILENCE,
    SNAPSHOT,
    UNREADABLE,
    WELCOME,
    not_made,
)
from seqtop.checks.stream_checker import StreamChecker
from seqtop.checks.thresholds import DEFAULT_THRESHOLDS, Thresholds
from seqtop.sequence.privacy import Privacy
from seqtop.state import EngineState, snapshot
from seqtop.transport import sockets
from seqtop.transport.connection import UnreachableError
from seqtop.transport.curve_keys import ViewerKeys
from seqtop.transport.endpoints import check, snapshot_endpoint
from seqtop.transport.handshake import HandshakeMonitor
from seqtop.wire import codec, frames, parsing
from seqtop.wire.error_location import name_path
from seqtop.wire.errors import WireError
from seqtop.wire.frames import Frame, Welcome
from seqtop.wire.messages import (
    EngineInfo,
    EngineStopped,
    Event,
    NotPublished,
    Refused,
    SnapshotRequest,
)
from seqtop.wire.redaction import privacy_of
from seqtop.wire.snapshot import Reply, RequestSnapshot, Snapshot, SnapshotPart

_POLL_MS: Final = 50
_REPLY_SECONDS: Final = 5.0
"""The time for a snapshot, which an engine may take between two steps."""
_ROUND_SECONDS: Final = 1.0
"""The time between two snapshots."""
_SPARE_INTERVALS: Final = 2.0
"""Intervals of heartbeats, and seconds, of silence that are no mistake: machines are busy."""
_TOLERANCE_SECONDS: Final = 1e-6
"""The largest difference of equal times, which may be sums."""
_OPTIONAL: Final = frozenset({"history", "prefix_misses", "output_logprobs", "top_logprobs"})
"""Fields that a snapshot may leave out."""
_MAX_SHOWN: Final = 120
"""Characters of a value that are shown."""
_MAX_WAITING_BYTES: Final = 256 * 2**20
"""Bytes of messages that may wait for a snapshot."""


class _Connection:
    """The two sockets of a viewer."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, keys: ViewerKeys | None
    ) -> None:
        self.live, self.requests = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        self.live.maxmsgsize = frames.MAX_MESSAGE_BYTES
        self.requests.maxmsgsize = frames.MAX_SNAPSHOT_BYTES
        self.live.subscribe(b"")
        self.has_received = False
        """True after the first message of the stream, which may be the welcome message."""
        self._handshakes = HandshakeMonitor(self.live, endpoint, has_keys=keys is not None)
        for socket in (self.live, self.requests):
            socket.linger = 0
            if keys is not None:
                keys.secure(socket)
        self.live.connect(endpoint)
        self.requests.connect(snapshot_endpoint(endpoint))

    def refusal(self) -> str | None:
        """Returns the reason why the engine refuses this viewer, if it does."""
        return self._handshakes.refusal()

    def close(self) -> None:
        """Closes the sockets."""
        self._handshakes.close()
        self.live.close()
        self.requests.close()


class _Message(NamedTuple):
    """A message of the live stream that waits to be applied."""

    number: int
    payload: bytes
    """Empty if it changes no state that is compared."""


class _Joining:
    """A snapshot, whose parts may not all have come."""

    def __init__(self, incarnation: str, next_number: int, first: Snapshot) -> None:
        self.incarnation = incarnation
        self.next_number = next_number
        self.state = EngineState()
        self.next_part = 0
        self.is_complete = False
        self._loader = snapshot.SnapshotLoader(first, self.state)
        self._add(first, is_last=not first.has_parts)

    def add_part(self, part: SnapshotPart) -> None:
        """Adds the next part.

        Raises:
            WireError: It is another one, or the snapshot contradicts itself.
        """
        if self.is_complete or part.index != self.next_part:
            raise WireError(f"part {part.index} comes in place of part {self.next_part}")
        self.next_part += 1
        self._add(part, is_last=part.is_last)

    def _add(self, entries: Snapshot | SnapshotPart, *, is_last: bool) -> None:
        self._loader.add(entries.requests, entries.cached_blocks or ())
        if is_last:
            self._loader.end()
            self.is_complete = True


class ProtocolChecker(StreamChecker):
    """Checks a publisher by what it sends to viewers.

    Args:
        endpoint: The endpoint of the live stream.
        keys: The viewer's CurveZMQ keys, if the engine requires any.
        thresholds: The thresholds of the rules.
        gates: What the stream has to satisfy besides, as in `StreamChecker`.

    Raises:
        EndpointError: The endpoint is malformed.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        keys: ViewerKeys | None = None,
        thresholds: Thresholds = DEFAULT_THRESHOLDS,
        gates: Sequence[Gate] = (),
    ) -> None:
        super().__init__(stored="first", thresholds=thresholds, gates=gates)
        self.num_snapshots = 0
        """Snapshots that were compared with the state after the messages before them."""
        self.num_unknown = 0
        """Events whose names this version does not know."""
        self._endpoint = check(endpoint)
        self._keys = keys
        self._is_stopped = False
        self._incarnation: str | None = None
        self._last_number: int | None = None
        """The number of the last message that was received."""
        self._is_gap_announced = False
        """True from a `NotPublished`, which says why numbers will be missing, to this gap."""
        self._unreadable = ""
        """The error of the last message that cannot be read."""
        self._num_lost = 0
        """The number after the last message that is missing or cannot be read: earlier snapshots do
        not help."""
        self._applied = -1
        """The number of the last message in `_state`."""
        self._state: EngineState | None = None
        """The state that the messages have led to; `None` in a gap, and before the first
        snapshot."""
        self._waiting: deque[_Message] = deque()
        self._num_waiting_bytes = 0
        self._is_joining = False
        """True from the request for a snapshot until it was compared."""
        self._joining: _Joining | None = None
        self._reported: set[str] = set()
        self._received_at: float | None = None
        self._connections: list[_Connection] = []
        self._deadline = math.inf

    def run(self, ended: threading.Event, duration: float | None, timeout: float) -> None:
        """Reads until `ended` is set, for `duration` seconds, or until the engine stops.

        Raises:
            UnreachableError: Nothing arrived within `timeout` seconds, or the engine refused.
        """
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._run(context, ended, duration, timeout)
        finally:
            sockets.terminate(context)

    def _run(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        ended: threading.Event,
        duration: float | None,
        timeout: float,
    ) -> None:
        first = self._connect(context)
        self._wait(ended, lambda: first.has_received, timeout)
        if not first.has_received and not ended.is_set():
            raise UnreachableError(
                f"no engine answered at {self._endpoint} within {timeout:g} s;"
                " is one running there?"
            )
        if duration is not None:
            self._deadline = time.monotonic() + duration
        num_rounds = 0
        while not self._is_over(ended):
            is_late = num_rounds % 2 == 1
            connection = self._connect(context) if is_late else first
            self._join(ended, connection, with_parts=num_rounds % 4 < 2)
            if is_late:
                self._connections.remove(connection)
                connection.close()
            num_rounds += 1
            self._wait(ended, lambda: False, _ROUND_SECONDS)
        self._release()

    def _connect(self, context: zmq.Context[zmq.Socket[bytes]]) -> _Connection:
        connection = _Connection(context, self._endpoint, self._keys)
        self._connections.append(connection)
        return connection

    def _is_over(self, ended: threading.Event) -> bool:
        return self._is_stopped or ended.is_set() or time.monotonic() >= self._deadline

    def _wait(self, ended: threading.Event, condition: Callable[[], bool], seconds: float) -> bool:
        """Receives until a condition holds, for some seconds; returns whether it does."""
        until = time.monotonic() + seconds
        while not (holds := condition()) and time.monotonic() < until and not self._is_over(ended):
            self._receive()
        return holds

    def _join(self, ended: threading.Event, connection: _Connection, *, with_parts: bool) -> None:
        """Requests a snapshot as a viewer does, and compares it with the state."""
        self._wait(ended, lambda: connection.has_received, _REPLY_SECONDS)
        if self._is_over(ended):
            return
        self._joining, self._is_joining = None, True
        # A connection whose handshake was refused has no room; `_receive` raises the reason.
        with contextlib.suppress(zmq.Again):
            request = codec.encode(SnapshotRequest(with_parts=with_parts))
            connection.requests.send(request, zmq.DONTWAIT)
        self._wait(ended, lambda: not self._is_joining, _REPLY_SECONDS)
        if self._is_joining and not self._is_over(ended):
            self._report_unfinished_join()
        self._release()

    def _report_unfinished_join(self) -> None:
        joining = self._joining
        if joining is None:
            self._report_once(SNAPSHOT, f"no reply to SnapshotRequest within {_REPLY_SECONDS:g} s")
        elif not joining.is_complete:
            message = f"part {joining.next_part} of a snapshot did not come"
            self._report_once(SNAPSHOT, message)
        else:
            message = (
                f"the number of the reply is {joining.next_number}, and the next message of the"
                f" stream has {(self._last_number or 0) + 1}"
            )
            self._report_once(SNAPSHOT, message)

    def _release(self) -> None:
        """Ends a join, and applies what has waited for it."""
        self._joining, self._is_joining = None, False
        self._apply_waiting()

    # --- Receiving

    def _receive(self) -> None:
        """Waits a little, and handles all that has arrived."""
        first, *_ = self._connections
        poller = zmq.Poller()
        for connection in self._connections:
            poller.register(connection.live, zmq.POLLIN)
            poller.register(connection.requests, zmq.POLLIN)
        poller.poll(_POLL_MS)
        if reason := first.refusal():
            raise UnreachableError(reason)
        # Replies are received first and handled last: the messages before them have come by then.
        replies = [list(_received(connection.requests)) for connection in self._connections]
        for connection in self._connections:
            for parts in _received(connection.live):
                self._on_message(parts, connection, is_first=connection is first)
        for parts in itertools.chain.from_iterable(replies):
            self._on_reply(parts)
        self._check_silence()

    def _on_message(self, parts: list[bytes], connection: _Connection, *, is_first: bool) -> None:
        try:
            frame = frames.unpack(parts)
        except WireError as error:
            connection.has_received = True
            self._report_once(FRAMES, f"{error} (topic {parts[0][:60]!r})")
            return
        if not connection.has_received and not isinstance(frame, Welcome):
            self._report_once(WELCOME, "the first message of a new subscription was an event")
        connection.has_received = True
        if is_first and isinstance(frame, Frame):
            self._on_frame(frame)

    def _on_frame(self, frame: Frame) -> None:
        self._received_at = time.monotonic()
        number = frame.sequence_number
        if frame.incarnation != self._incarnation:
            if self._incarnation is not None:
                self._lose_state(0)
            self._incarnation, self._last_number = frame.incarnation, None
            if number == 0:
                self._state, self._applied = EngineState(), -1
                self.start(-1, EngineState())
        else:
            last = self._last_number
            if last is None:  # a snapshot came first; it may have overtaken messages
                last = min(self._applied, number - 1)
            if number != last + 1:
                if not self._is_gap_announced:
                    self.report(FRAMES, _jump(last, number))
                self._is_gap_announced = False
                self._lose_state(number)
        self._last_number = number
        try:
            event = parsing.event(frame.payload)
        except parsing.UnknownEventError as error:
            self.num_unknown += 1
            self.report(IGNORED, f"message {number}: {error}")
            self._add(_Message(number, b""))
            return
        except WireError as error:
            self.report(UNREADABLE, f"message {number}: {error}")
            self._unreadable = str(error)
            self._lose_state(number + 1)
            return
        self._report_extra(f"message {number}: ", frame.payload, event, Event)
        self._check_event(frame, event)
        if isinstance(event, NotPublished):
            # Whether or not there is a state to apply it to: a gap follows.
            self._is_gap_announced = True
            reason = f"{event.reason}: {event.detail}" if event.detail else event.reason
            if reason != self._unreadable:
                self.report(NOT_PUBLISHED, not_made(reason, event))
            self._add(_Message(number, b""))
            return
        self._add(_Message(number, frame.payload))

    def _add(self, message: _Message) -> None:
        self._waiting.append(message)
        self._num_waiting_bytes += len(message.payload)
        if self._num_waiting_bytes > _MAX_WAITING_BYTES:
            self._lose_state(message.number + 1)
        self._apply_waiting()

    def _check_event(self, frame: Frame, event: Event) -> None:
        if frame.sequence_number == 0 and not isinstance(event, EngineInfo):
            self.report(FRAMES, f"message 0 is {type(event).__name__} in place of EngineInfo")
        if isinstance(event, EngineInfo) and event.incarnation != frame.incarnation:
            message = (
                f"message {frame.sequence_number}: EngineInfo.incarnation is"
                f" {event.incarnation!r}, and the topic has {frame.incarnation!r}"
            )
            self.report(FRAMES, message)
        self._is_stopped = self._is_stopped or isinstance(event, EngineStopped)

    def _check_silence(self) -> None:
        info = None if self._state is None else self._state.info
        if info is None or self._received_at is None:
            return
        silence = time.monotonic() - self._received_at
        if silence > _SPARE_INTERVALS * (info.heartbeat_interval + 1):
            message = f"nothing came for {silence:.0f} s after message {self._last_number}"
            key = f"{self._incarnation} {self._last_number}"
            self._report_once(SILENCE, message, key)

    def _lose_state(self, num_lost: int) -> None:
        """Stops applying messages until a snapshot of at least so many messages."""
        self._num_lost = num_lost
        if self._state is not None:
            self.stop()
        self._state = None
        self._waiting.clear()
        self._num_waiting_bytes = 0

    # --- Snapshots

    def _on_reply(self, parts: list[bytes]) -> None:
        try:
            frame = frames.unpack_reply([memoryview(part) for part in parts])
            reply = parsing.reply(frame.payload)
        except frames.ForeignMessageError as error:
            self._end_join(FRAMES, f"the reply to SnapshotRequest: {error}")
            return
        except WireError as error:
            self._end_join(UNREADABLE, f"the reply to SnapshotRequest: {error}")
            return
        self._report_extra(f"{type(reply).__name__}: ", bytes(frame.payload), reply, Reply)
        try:
            if isinstance(reply, Snapshot):
                if reply.info is None:
                    self._report_once(SNAPSHOT, "Snapshot.info is nil")
                self._joining = _Joining(frame.incarnation, frame.next_number, reply)
            elif isinstance(reply, SnapshotPart) and self._joining is not None:
                self._joining.add_part(reply)
            elif isinstance(reply, Refused):
                self._end_join(SNAPSHOT, f"SnapshotRequest was refused: {reply.error}")
        except WireError as error:
            self._end_join(SNAPSHOT, str(error))
        self._apply_waiting()

    def _end_join(self, rule: str, mistake: str) -> None:
        """Reports why a snapshot cannot be used, and waits no longer for it."""
        self._report_once(rule, mistake)
        self._joining, self._is_joining = None, False

    def _apply_waiting(self) -> None:
        """Applies the messages that need not wait for a snapshot, and compares the snapshot."""
        joining = self._joining if self._joining and self._joining.is_complete else None
        if self._is_joining and joining is None:
            return
        if self._state is None and joining is not None:
            self._joining, self._is_joining = None, False
            if self._waiting and self._waiting[0].number > joining.next_number:
                self._num_lost = self._waiting[0].number
            if joining.next_number >= self._num_lost:
                if self._incarnation is None:  # the next message shows whether some are missing
                    self._incarnation = joining.incarnation
                self._state, self._applied = joining.state, joining.next_number - 1
                self.start(self._applied, codec.decode(codec.encode(joining.state), EngineState))
            joining = None
        while self._waiting and self._state is not None:
            number, payload = self._waiting[0]
            if joining is not None and number >= joining.next_number:
                break
            self._waiting.popleft()
            self._num_waiting_bytes -= len(payload)
            if number > self._applied:
                self._applied = number
                if payload:
                    self._state.apply(parsing.event(payload))
                    self.check(number, parsing.event(payload))
        if joining is not None and self._applied >= joining.next_number - 1:
            self._compare(joining)
            self._joining, self._is_joining = None, False
            self._apply_waiting()

    def _compare(self, joining: _Joining) -> None:
        assert self._state is not None, "there is one to compare with"
        self.num_snapshots += 1
        number, after = joining.next_number, f"the snapshot after message {joining.next_number - 1}"
        if self._applied >= number:
            message = (
                f"the number of the reply is {number}, but message {self._applied} had come before"
            )
            self._report_once(SNAPSHOT, message, "number")
            return
        if joining.state.step != self._state.step:
            message = f"{after} is that of step {joining.state.step}, and not {self._state.step}"
            self._report_once(SNAPSHOT, message, "step")
            return
        for found in differences(joining.state, self._state):
            place = " of ".join(filter(None, (found.field, found.owner)))
            sentence = f"{after}: {place} is {found.one}, and {found.other} by the messages"
            self._report_once(SNAPSHOT, sentence, found.field)

    # --- Reports

    def _report_extra(self, where: str, payload: bytes, message: Any, kind: Any) -> None:
        """Reports the elements and keys of a message that decoding has ignored."""
        sent = msgspec.msgpack.decode(payload)
        read = msgspec.msgpack.decode(codec.encode(message))
        for path, key in _extra(sent, read, ""):
            place = name_path(path, kind, sent) or type(message).__name__
            self._report_once(
                IGNORED, f"{where}{place} has {key}, which nothing reads", place + key
            )

    def _report_once(self, rule: str, message: str, key: str | None = None) -> None:
        """Reports a mistake that would be the same each time, the first time."""
        key = f"{rule} {key or message}"
        if key not in self._reported:
            self._reported.add(key)
            self.report(rule, message)


class StateDifference(NamedTuple):
    """A field in which what is differs in two states, and both values as text."""

    field: str
    """Empty for a request that only one state has."""
    owner: str
    """The request or the sequence; empty for the engine."""
    one: str
    other: str


def differences(one: EngineState, other: EngineState) -> Iterator[StateDifference]:
    """Yields the fields in which what is differs in two states."""
    for name in ("stats", "cached_blocks"):
        yield from _compared(name, "", getattr(one, name), getattr(other, name))
    requests, reference = _unfinished(one), _unfinished(other)
    for request_id in requests.keys() | reference.keys():
        owner, words = f"request {request_id!r}", ("missing", "there")
        if request_id not in requests or request_id not in reference:
            here, there = words[request_id in requests], words[request_id in reference]
            yield StateDifference("", owner, here, there)
            continue
        whole, expected = requests[request_id], reference[request_id]
        yield from _compared("arrival", owner, whole.arrival, expected.arrival)
        for sequence, wanted in zip(whole.sequences, expected.sequences, strict=False):
            owner = f"sequence {sequence.update.seq_id} of {request_id!r}"
            yield from _compared("", owner, sequence, wanted)


def _unfinished(state: EngineState) -> dict[str, RequestSnapshot]:
    ended = {id_ for id_, request in state.requests.items() if request.finish_reason is not None}
    return {
        whole.arrival.request_id: whole
        for whole in snapshot.request_snapshots(state)
        if whole.arrival.request_id not in ended
    }


def _compared(field: str, owner: str, one: Any, other: Any) -> Iterator[StateDifference]:
    """Yields the fields in which two values differ: of structs, those inside."""
    names = getattr(one, "__struct_fields__", ()) or getattr(one, "__dataclass_fields__", ())
    if names and type(one) is type(other):
        privacy = privacy_of(type(one)) if isinstance(one, msgspec.Struct) else {}
        for name in names:
            if name in _OPTIONAL:
                continue
            inner = f"{field}.{name}".lstrip(".")
            here, there = getattr(one, name), getattr(other, name)
            if privacy.get(name, Privacy.PUBLIC) is Privacy.PUBLIC:
                yield from _compared(inner, owner, here, there)
            elif here != there:
                kind, wanted = _kind(here), _kind(there)
                wanted = f"another {wanted}" if wanted == kind else wanted
                yield StateDifference(inner, owner, kind, wanted)
    elif isinstance(one, float) and isinstance(other, float):
        # A sum may be rounded in another way.
        if one != other and not abs(one - other) <= _TOLERANCE_SECONDS:
            yield StateDifference(field, owner, _shown(one), _shown(other))
    elif one != other:
        yield StateDifference(field, owner, _shown(one), _shown(other))


def _kind(value: Any) -> str:
    """Returns what is said of a private value: its type, and its length if it has one."""
    size = f" of length {len(value):,}" if hasattr(value, "__len__") else ""
    return "nil" if value is None else f"{type(value).__name__}{size}"


def _shown(value: Any) -> str:
    text = "nil" if value is None else repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _jump(before: int, number: int) -> str:
    """Describes a number that is not the next one."""
    text = f"number {number} follows {before}"
    swapped = int.from_bytes(number.to_bytes(8, "big"), "little")
    return f"{text}: numbers are big-endian" if swapped in {before + 1, 1} else text


def _extra(sent: Any, read: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields the path of each container with more than decoding has kept, and what it has."""
    if isinstance(sent, list) and isinstance(read, list):
        if len(sent) > len(read):
            yield path, f"element {len(read)}"
        for index, (item, kept) in enumerate(zip(sent, read, strict=False)):
            yield from _extra(item, kept, f"{path}[{index}]")
    elif isinstance(sent, dict) and isinstance(read, dict):
        for key, item in sent.items():
            if key in read:
                yield from _extra(item, read[key], f"{path}[...]")
            elif item is not None:
                yield path, f"the key {key!r}"


def _received(socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
    """Yields the messages that have arrived."""
    while True:
        try:
            yield socket.recv_multipart(zmq.DONTWAIT)
        except zmq.Again:
            return
