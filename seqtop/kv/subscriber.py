"""The subscriber to KV-cache events: receives them in order, and fills gaps from a replay.

Gaps show in the sequence numbers. The publisher's replay socket, if it has one, is queried at the
start, so that blocks cached earlier are included, after a gap, and after a lost connection. In the
last case the last message received shows whether the engine is still the same. The format has
neither heartbeats nor a last message, so only the connection shows whether the publisher runs.
"""

from __future__ import annotations

from typing import Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from seqtop.kv import messages
from seqtop.kv.messages import EventBatch, KvMessage
from seqtop.kv.replay_client import ReplayClient, ReplayEnded
from seqtop.text import format as fmt
from seqtop.transport import sockets
from seqtop.transport.base_subscriber import BaseSubscriber, ConnectionSink, PendingMessages
from seqtop.transport.connection import ConnectionState
from seqtop.transport.endpoints import check
from seqtop.wire.errors import WireError

MAX_UNREAD_MESSAGES = 10_000
_MESSAGES_PER_ROUND = 500
_POLL_MS = 250
_MAX_MISSED = 2**53
"""The publisher chooses the numbers. JSON represents counts exactly up to this limit."""

_MISSED_START = "blocks stored before the first message received are unknown"


class KvSink(ConnectionSink, Protocol):
    """Receives batches of events. Called on the subscriber's thread."""

    def apply(self, batch: EventBatch) -> None:
        """Updates the state by the next batch."""

    def missed(self, reason: str) -> None:
        """Reports that messages are missing for good. `reason` is a clause for the user."""

    def restarted(self) -> None:
        """Reports a restart of the engine, which empties its cache."""


class KvSubscriber(BaseSubscriber[KvSink]):
    """Follows one publisher on a thread of its own, from `start` to `close`.

    Args:
        endpoint: The publisher's ZeroMQ endpoint.
        sink: Receives batches of events.
        replay: The endpoint of the publisher's replay socket, if it has one.
        topic: The prefix of the topics to receive.

    Raises:
        EndpointError: An endpoint is malformed.
    """

    THREAD_NAME = "seqtop-kv-events"

    def __init__(
        self, endpoint: str, sink: KvSink, *, replay: str | None = None, topic: str = ""
    ) -> None:
        super().__init__(endpoint, sink)
        self._replay_endpoint = replay if replay is None else check(replay)
        self._topic_prefix = topic.encode()
        # The whole topic of the one publisher that is followed.
        self._topic: bytes | None = None
        # None before the first message.
        self._next_number: int | None = None
        self._last_payload = b""
        # The last live number on this connection.
        self._last_live = -1
        # The last replayed number. Live messages up to it are repetitions.
        self._last_replayed = -1
        self._replay: ReplayClient | None = None
        # Whether the first replayed message has to prove that the engine is still the same.
        self._is_verifying = False
        # Live messages that arrive during a replay.
        self._pending = PendingMessages[KvMessage]()
        self._is_connected = False

    def _open(self) -> None:
        self._live = self._context.socket(zmq.SUB)
        self._live.rcvhwm = MAX_UNREAD_MESSAGES
        self._live.maxmsgsize = messages.MAX_MESSAGE_BYTES
        sockets.enable_keepalive(self._live)
        self._live.subscribe(self._topic_prefix)
        self._monitor = self._live.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._live.connect(self.connection.endpoint)
        self._set_state(
            ConnectionState.CONNECTING, f"nothing answers at {self.connection.endpoint} yet"
        )

    def _receive_until_woken(self) -> None:
        while True:
            poller = zmq.Poller()
            for socket in (self._live, self._wake_receiver, self._monitor):
                poller.register(socket, zmq.POLLIN)
            if self._replay is not None:
                poller.register(self._replay.socket, zmq.POLLIN)
            ready = dict(poller.poll(_POLL_MS))
            if self._wake_receiver in ready:
                break
            if self._monitor in ready:
                self._check_connection()
            if self._live in ready:
                self._receive_live()
            if self._replay is not None:
                self._receive_replay(self._replay)
        self._live.disable_monitor()
        self._close_replay()
        for socket in (self._live, self._wake_receiver):
            socket.close()

    def _check_connection(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._is_connected = True
                self._last_live = self._last_replayed = -1
                self._on_connected()
            elif event == zmq.EVENT_DISCONNECTED and self._is_connected:
                # The socket still holds what the publisher sent before.
                while self._receive_live():
                    pass
                self._is_connected = False
                self._set_state(
                    ConnectionState.LOST,
                    f"the connection to {self.connection.endpoint} is lost;"
                    " waiting for it to return",
                )

    def _on_connected(self) -> None:
        # From now on, every message arrives live.
        if self._replay_endpoint is None:
            self._set_live()
        elif self._next_number is None:
            self._request_replay(0, "fetching earlier messages")
        else:
            self._request_replay(
                max(self._next_number - 1, 0), "checking for missed messages", verify=True
            )

    def _receive_live(self) -> bool:
        """Receives some messages; returns whether there may be more."""
        for _ in range(_MESSAGES_PER_ROUND):
            try:
                parts = self._live.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return False
            self.connection.num_messages += 1
            self.connection.num_bytes += sum(map(len, parts))
            try:
                message = self._unpack(parts)
            except WireError as error:
                self._report_error(error)
                if self._next_number is None and self._replay is None:
                    self._set_state(
                        ConnectionState.INCOMPATIBLE, self._explain_foreign(parts, error)
                    )
                continue
            if self._replay is not None:
                self._pending.add(message)
            else:
                self._handle_live(message)
        return True

    def _unpack(self, parts: list[bytes]) -> KvMessage:
        message = messages.unpack(parts)
        if message.number < 0:
            raise WireError(f"the sequence number is {message.number}")
        if self._topic is None:
            self._topic = message.topic
        elif self._topic != message.topic:
            texts = [topic[:80].decode(errors="replace") for topic in (message.topic, self._topic)]
            raise WireError(
                f"a message of another topic, {texts[0]!r} beside {texts[1]!r}:"
                " choose one with --kv-topic"
            )
        return message

    def _handle_live(self, message: KvMessage, *, may_replay: bool = True) -> None:
        number = message.number
        is_repetition = self._next_number is not None and number < self._next_number
        has_restarted = number <= self._last_live or (
            is_repetition and number > self._last_replayed
        )
        if has_restarted:
            self._reset()
        elif is_repetition:
            self._last_live = number
            return
        if self._next_number is None:
            if number > 0:
                if may_replay and self._replay_gap(0, message):
                    return
                self._report_missed(0, _MISSED_START)
        elif number > self._next_number:
            if may_replay and self._replay_gap(self._next_number, message):
                return
            self._report_gap(number)
        self._last_live = number
        self._apply(message)

    def _apply(self, message: KvMessage) -> None:
        self._next_number = message.number + 1
        self._last_payload = message.payload
        try:
            batch = messages.decode(message.payload)
        except WireError as error:
            self._report_error(error)
            self._report_missed(1, f"message {message.number} could not be read")
        else:
            self._sink.apply(batch)
        if (
            self._replay is None
            and self.connection.state is not ConnectionState.LIVE
            and self._is_connected
        ):
            self._set_live()

    def _report_gap(self, number: int) -> None:
        """Reports all messages before `number` as missing."""
        assert self._next_number is not None
        missing = number - self._next_number
        self._report_missed(
            missing, f"{fmt.plural(missing, 'message')} before number {number:,} missing"
        )
        self._next_number = number

    def _report_missed(self, count: int, reason: str) -> None:
        self.connection.num_missed = min(self.connection.num_missed + count, _MAX_MISSED)
        self._sink.missed(reason)

    def _reset(self) -> None:
        self.connection.num_resyncs += 1
        self._next_number = None
        self._last_live = self._last_replayed = -1
        self._last_payload = b""
        self._sink.restarted()

    def _replay_gap(self, first: int, message: KvMessage) -> bool:
        """Requests the missing messages; returns False without a replay endpoint."""
        if self._replay_endpoint is None:
            return False
        self.connection.num_resyncs += 1
        self._request_replay(first, f"fetching missing messages from number {first:,} on")
        self._pending.add(message)
        return True

    def _request_replay(self, first: int, detail: str, *, verify: bool = False) -> None:
        assert self._replay_endpoint is not None
        self._close_replay()
        self._is_verifying = verify
        self._replay = ReplayClient(self._context, self._replay_endpoint, first)
        self._set_state(ConnectionState.SYNCING, detail)

    def _receive_replay(self, replay: ReplayClient) -> None:
        for _ in range(_MESSAGES_PER_ROUND):
            received = replay.receive()
            match received:
                case None:
                    return
                case ReplayEnded():
                    self._finish_replay(received)
                    return
                case WireError():
                    self._report_error(received)
                case KvMessage():
                    if self._is_verifying and not self._is_same_engine(received):
                        return
                    self._handle_replayed(received)

    def _is_same_engine(self, replayed: KvMessage) -> bool:
        """Returns whether the replay has the last message received; if not, starts over."""
        self._is_verifying = False
        assert self._next_number is not None
        if replayed.number >= self._next_number:  # the publisher has discarded that message
            return True
        if replayed.number == self._next_number - 1 and replayed.payload == self._last_payload:
            return True
        self._start_over()
        return False

    def _start_over(self) -> None:
        self._reset()
        self._request_replay(
            0, "the engine has been restarted; fetching what it has published since"
        )

    def _handle_replayed(self, message: KvMessage) -> None:
        if self._next_number is None:
            if message.number > 0:
                self._report_missed(
                    0, f"messages before number {message.number:,} have been discarded"
                )
        elif message.number < self._next_number:
            return
        elif message.number > self._next_number:
            self._report_gap(message.number)
        self._apply(message)
        self._last_replayed = message.number

    def _finish_replay(self, end: ReplayEnded) -> None:
        if self._is_verifying and end is ReplayEnded.DONE:
            self._is_verifying = False
            self._start_over()  # the publisher does not have the last message received
            return
        self._close_replay()
        if end is not ReplayEnded.DONE:
            self._report_missed(0, end.value)
            self.connection.last_error = end.value
            self.connection.num_errors += 1
        for message in self._pending.take():
            self._handle_live(message, may_replay=False)
        self._set_live()

    def _close_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    def _explain_foreign(self, parts: list[bytes], error: WireError) -> str:
        if parts[0].startswith(b"seqtop/"):
            return f"{self.connection.endpoint} has seqtop's own stream: attach without --kv-events"
        return f"the publisher at {self.connection.endpoint} does not send KV-cache events: {error}"

    def _set_live(self) -> None:
        if self._is_connected:
            self._set_state(ConnectionState.LIVE)
