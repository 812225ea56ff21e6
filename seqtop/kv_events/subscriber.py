"""Follows a publisher of KV-cache events: in order, without holes where they can be filled.

Numbers tell what is missing; the publisher's replay socket, if it has one, is asked for it: at the
beginning, so that what is cached already is known, after a hole, and after a lost connection, when
the last message that was seen shows whether this is the engine it was. There are no heartbeats and
no goodbyes among these events; whether somebody is there, the connection itself has to tell.
"""

from __future__ import annotations

from typing import Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from seqtop import format as fmt
from seqtop.connection import ConnectionState
from seqtop.kv_events import messages
from seqtop.kv_events.messages import EventBatch, KvMessage
from seqtop.kv_events.replay_client import ReplayClient, ReplayEnded
from seqtop.transport.base_subscriber import BaseSubscriber, ConnectionSink
from seqtop.transport.endpoints import check
from seqtop.transport.keepalive import keep_alive
from seqtop.transport.pending_messages import PendingMessages
from seqtop.wire.errors import WireError

MAX_UNREAD_MESSAGES = 10_000
_MESSAGES_PER_ROUND = 500
_LONGEST_POLL_MS = 250
_MOST_MISSED = 2**53
"""Numbers are the publisher's; counts of them are to stay ones that JSON can tell."""

_ANYTHING_BEFORE = "what was stored before the first message seen is not known"


class KvSink(ConnectionSink, Protocol):
    """Where a subscriber puts what it receives. Called on the subscriber's thread."""

    def apply(self, batch: EventBatch) -> None:
        """Change the state by the next message."""

    def missed(self, why: str) -> None:
        """Messages are missing here and cannot be had any more; `why` is half a sentence."""

    def restarted(self) -> None:
        """The engine is another one: what was known of its cache is no longer so."""


class KvSubscriber(BaseSubscriber[KvSink]):
    """Follows one publisher on a thread of its own, from `start` to `close`.

    Args:
        replay: Where old messages can be asked for, if anywhere.
        topic: What the topic of messages is to begin with.

    Raises:
        EndpointError: an endpoint is malformed.
    """

    THREAD_NAME = "seqtop-kv-events"

    def __init__(
        self, endpoint: str, sink: KvSink, *, replay: str | None = None, topic: str = ""
    ) -> None:
        super().__init__(endpoint, sink)
        self._replay_endpoint = replay if replay is None else check(replay)
        self._wanted_topic = topic.encode()
        self._topic: bytes | None = None
        """Of the one publisher that is followed."""
        self._next: int | None = None
        """Number of the message that comes next in line; `None` before the first."""
        self._last_payload = b""
        self._last_live = -1
        """The last number seen live on this connection."""
        self._replayed_to = -1
        """The last number that a replay gave: until there, live messages come a second time."""
        self._replay: ReplayClient | None = None
        self._probing = False
        """Whether the replay is to show first that this is the engine it was."""
        self._kept = PendingMessages[KvMessage]()
        """Live messages that came while others are replayed."""
        self._connected = False

    def _open(self) -> None:
        self._live = self._context.socket(zmq.SUB)
        self._live.rcvhwm = MAX_UNREAD_MESSAGES
        self._live.maxmsgsize = messages.MAX_MESSAGE_BYTES
        keep_alive(self._live)
        self._live.subscribe(self._wanted_topic)
        self._monitor = self._live.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._live.connect(self.link.endpoint)
        self._show(ConnectionState.CONNECTING, f"nothing answers at {self.link.endpoint} yet")

    def _follow(self) -> None:
        while True:
            poller = zmq.Poller()
            for socket in (self._live, self._woken, self._monitor):
                poller.register(socket, zmq.POLLIN)
            if self._replay is not None:
                poller.register(self._replay.socket, zmq.POLLIN)
            ready = dict(poller.poll(_LONGEST_POLL_MS))
            if self._woken in ready:
                break
            if self._monitor in ready:
                self._look_at_connection()
            if self._live in ready:
                self._receive_live()
            if self._replay is not None:
                self._receive_replay(self._replay)
        self._live.disable_monitor()
        self._end_replay()
        for socket in (self._live, self._woken):
            socket.close()

    # The connection.

    def _look_at_connection(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected = True
                self._last_live = self._replayed_to = -1
                self._joined()
            elif event == zmq.EVENT_DISCONNECTED and self._connected:
                # What it sent before it went is in the socket still.
                while self._receive_live():
                    pass
                self._connected = False
                self._show(
                    ConnectionState.LOST,
                    f"the connection to {self.link.endpoint} is lost; waiting for it to return",
                )

    def _joined(self) -> None:
        """The connection stands: what is sent from now on will arrive."""
        if self._replay_endpoint is None:
            self._show_live()
        elif self._next is None:
            self._ask(0, "fetching what has been published so far")
        else:
            self._ask(max(self._next - 1, 0), "asking whether anything was missed", probing=True)

    # Live messages.

    def _receive_live(self) -> bool:
        """Take some; whether there may be more."""
        for _ in range(_MESSAGES_PER_ROUND):
            try:
                parts = self._live.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return False
            self.link.num_messages += 1
            self.link.num_bytes += sum(map(len, parts))
            try:
                message = self._unpack(parts)
            except WireError as error:
                self._refused(error)
                if self._next is None and self._replay is None:
                    self._show(ConnectionState.INCOMPATIBLE, self._foreign_sentence(parts, error))
                continue
            if self._replay is not None:
                self._kept.add(message)
            else:
                self._take_live(message)
        return True

    def _unpack(self, parts: list[bytes]) -> KvMessage:
        message = messages.unpack(parts)
        if message.number < 0:
            raise WireError(f"the sequence number is {message.number}")
        if self._topic is None:
            self._topic = message.topic
        elif self._topic != message.topic:
            texts = [each[:80].decode(errors="replace") for each in (message.topic, self._topic)]
            raise WireError(
                f"a message of another topic, {texts[0]!r} beside {texts[1]!r}:"
                " choose one with --kv-topic"
            )
        return message

    def _take_live(self, message: KvMessage, *, may_ask: bool = True) -> None:
        number = message.number
        is_known = self._next is not None and number < self._next
        fell_back = number <= self._last_live or (is_known and number > self._replayed_to)
        if fell_back:
            self._restarted()
        elif is_known:
            self._last_live = number
            return
        if self._next is None:
            if number > 0:
                if may_ask and self._heal(0, message):
                    return
                self._missed(0, _ANYTHING_BEFORE)
        elif number > self._next:
            if may_ask and self._heal(self._next, message):
                return
            self._hole(number)
        self._last_live = number
        self._take(message)

    def _take(self, message: KvMessage) -> None:
        """Apply the next message in line."""
        self._next = message.number + 1
        self._last_payload = message.payload
        try:
            batch = messages.decode(message.payload)
        except WireError as error:
            self._refused(error)
            self._missed(1, f"message {message.number} could not be read")
        else:
            self._sink.apply(batch)
        if self._replay is None and self.link.state is not ConnectionState.LIVE and self._connected:
            self._show_live()

    def _hole(self, number: int) -> None:
        """What there is between the last message and `number` is lost."""
        assert self._next is not None
        missing = number - self._next
        self._missed(missing, f"{fmt.plural(missing, 'message')} before number {number:,} missing")
        self._next = number

    def _missed(self, count: int, why: str) -> None:
        self.link.num_missed = min(self.link.num_missed + count, _MOST_MISSED)
        self._sink.missed(why)

    def _restarted(self) -> None:
        self.link.num_resyncs += 1
        self._next = None
        self._last_live = self._replayed_to = -1
        self._last_payload = b""
        self._sink.restarted()

    # Replay.

    def _heal(self, first: int, message: KvMessage) -> bool:
        """Ask for what is missing, and keep `message` until it is there; False if nobody can."""
        if self._replay_endpoint is None:
            return False
        self.link.num_resyncs += 1
        self._ask(first, f"fetching what is missing from number {first:,} on")
        self._kept.add(message)
        return True

    def _ask(self, first: int, why: str, *, probing: bool = False) -> None:
        assert self._replay_endpoint is not None
        self._end_replay()
        self._probing = probing
        self._replay = ReplayClient(self._context, self._replay_endpoint, first)
        self._show(ConnectionState.SYNCING, why)

    def _receive_replay(self, replay: ReplayClient) -> None:
        for _ in range(_MESSAGES_PER_ROUND):
            answer = replay.receive()
            match answer:
                case None:
                    return
                case ReplayEnded():
                    self._replayed(answer)
                    return
                case WireError():
                    self._refused(answer)
                case KvMessage():
                    if self._probing and not self._is_the_same(answer):
                        return
                    self._take_replayed(answer)

    def _is_the_same(self, answer: KvMessage) -> bool:
        """Whether the engine still knows the last message that was seen; if not, begin anew."""
        self._probing = False
        assert self._next is not None
        if answer.number >= self._next:  # it keeps so few that this one is gone
            return True
        if answer.number == self._next - 1 and answer.payload == self._last_payload:
            return True
        self._begin_anew()
        return False

    def _begin_anew(self) -> None:
        self._restarted()
        self._ask(0, "the engine has been restarted; fetching what it has published since")

    def _take_replayed(self, message: KvMessage) -> None:
        if self._next is None:
            if message.number > 0:
                self._missed(0, f"messages before number {message.number:,} are no longer kept")
        elif message.number < self._next:
            return
        elif message.number > self._next:
            self._hole(message.number)
        self._take(message)
        self._replayed_to = message.number

    def _replayed(self, how: ReplayEnded) -> None:
        """The answer has ended: go on with what was kept, and live."""
        if self._probing and how is ReplayEnded.DONE:
            self._probing = False
            self._begin_anew()  # it knows nothing of the last message that was seen
            return
        self._end_replay()
        if how is not ReplayEnded.DONE:
            self._missed(0, how.value)
            self.link.last_error = how.value
            self.link.num_errors += 1
        for message in self._kept.take():
            self._take_live(message, may_ask=False)
        self._show_live()

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None

    def _foreign_sentence(self, parts: list[bytes], error: WireError) -> str:
        if parts[0].startswith(b"seqtop/"):
            return f"{self.link.endpoint} has seqtop's own stream: attach without --kv-events"
        return f"what is published at {self.link.endpoint} is no stream of KV events: {error}"

    def _show_live(self) -> None:
        if self._connected:
            self._show(ConnectionState.LIVE)
