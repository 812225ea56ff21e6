"""The publisher's thread: numbers and sends the live stream, and answers viewers."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import zmq

from seqtop.state import EngineState, snapshot
from seqtop.state.summary import Summarizer
from seqtop.transport.curve_keys import EngineKeys
from seqtop.transport.outbound_queue import (
    EndOfStream,
    OutboundQueue,
    QueuedEvent,
    QueuedReply,
    QueuedSnapshot,
)
from seqtop.transport.request_handler import RequestHandler
from seqtop.wire import codec, frames, snapshot_chunks
from seqtop.wire.element_count import MAX_STATE_ELEMENTS
from seqtop.wire.errors import WireError
from seqtop.wire.messages import (
    Abort,
    EngineInfo,
    Event,
    Heartbeat,
    Step,
    Submit,
)
from seqtop.wire.snapshot import Snapshot
from seqtop.wire.snapshot_chunks import SnapshotChunk

_ITEMS_PER_ROUND: Final = 1_000
_SUBSCRIPTIONS_PER_ROUND: Final = 1_000

SECONDS_BETWEEN_SUMMARIES: Final = 0.9
"""The time for which a summary serves all viewers. They request one a second."""

_YIELD_SECONDS: Final = 0.00005
"""The pause after each chunk of a snapshot, in which the engine's thread gets the interpreter lock.
Encoding a large state would otherwise slow the engine down for as long as it takes: CPython passes
the lock on only every 5 ms, and an engine takes it again after each operation of torch."""


class StreamServer:
    """Sends queued events to all viewers and serves requests. Owns the sockets once `run` starts.

    Args:
        live: The XPUB socket of the live stream.
        router: The ROUTER socket that receives requests.
        outbound_queue: Items from the engine's thread.
        info: The description of the engine.
        replica: The publisher's copy of the engine's state, which it sends as a snapshot.
        curve_keys: The engine's CurveZMQ keys, if it has any.
        commands: Receives viewers' commands with the identity of the viewer.
        clock: Returns the time of day in seconds since the epoch.
        on_command: Called after a command has been added to `commands`.

    Attributes:
        num_bytes_sent: Bytes of events taken from the queue so far. Read by the engine's thread.
        num_undecodable: Events that the replica could not decode. Read by the engine's thread.
        last_error: The reason for the last of these.
        num_subscriptions: Topics that at least one viewer subscribes to.
        has_summary_viewers: True while a viewer requests summaries.
    """

    def __init__(
        self,
        live: zmq.Socket[bytes],
        router: zmq.Socket[bytes],
        outbound_queue: OutboundQueue,
        info: EngineInfo,
        replica: EngineState,
        curve_keys: EngineKeys | None,
        commands: queue.Queue[tuple[bytes, Submit | Abort]],
        clock: Callable[[], float],
        on_command: Callable[[], None] | None = None,
    ) -> None:
        self.num_bytes_sent = 0
        self.num_undecodable = 0
        self.last_error = ""
        self.num_subscriptions = 0
        self.has_summary_viewers = False
        self._live = live
        self._router = router
        self._outbound_queue = outbound_queue
        self._info = info
        self._replica = replica
        self._requests = RequestHandler(
            router,
            info,
            curve_keys,
            commands,
            self._encode_snapshot,
            self._encode_summary,
            self._pack,
            on_command,
        )
        # Only while viewers request summaries: nothing is counted for nobody.
        self._summarizer: Summarizer | None = None
        self._summary: bytes | None = None
        self._summary_at = 0.0
        self._clock = clock
        self._next_number = 0
        self._step = -1
        self._last_sent = time.monotonic()
        self._is_stopped = False

    def stop(self) -> None:
        """Leaves out what is still queued, and ends `run` soon. Called by another thread."""
        self._is_stopped = True

    def run(self) -> None:
        """Serves until the engine's thread ends the queue, then closes both sockets."""
        poller = zmq.Poller()
        poller.register(self._outbound_queue.fileno(), zmq.POLLIN)
        poller.register(self._live, zmq.POLLIN)
        is_running = True
        while is_running:
            # Without tokens no request may be read: polling for one would return at once.
            may_read = self._requests.seconds_until_readable() == 0
            poller.register(self._router, zmq.POLLIN if may_read else 0)
            ready = {readable for readable, _ in poller.poll(self._poll_timeout_ms())}
            is_running = self._process_queue()
            if self._router in ready:
                self._requests.read()
            self._requests.send_snapshots()
            if self._live in ready:
                self._read_subscriptions()
            self._send_heartbeat_if_due()
            self._end_summaries_if_due()
        self._summary = None
        self._requests.send_last_summary()
        for socket in (self._live, self._router):
            socket.close()

    def _poll_timeout_ms(self) -> int:
        if self._outbound_queue:
            return 0
        waits = [
            self._last_sent + self._info.heartbeat_interval - time.monotonic(),
            self._requests.seconds_until_snapshot(),
        ]
        if seconds := self._requests.seconds_until_readable():
            waits.append(seconds)
        return max(0, int(min(waits) * 1000) + 1)

    def _process_queue(self) -> bool:
        """Handles queued items; returns whether the stream continues.

        The number of items is limited, so that a fast engine does not delay requests.
        """
        for item in self._outbound_queue.take(_ITEMS_PER_ROUND):
            if self._is_stopped:
                return False
            match item:
                case QueuedEvent(payload, num_dropped, event):
                    # Viewers see the gap in the numbers and request a snapshot.
                    self._next_number += num_dropped
                    self._send(payload, event)
                    self.num_bytes_sent += len(payload)
                case QueuedSnapshot(payload, num_dropped):
                    self._update_replica(payload, Snapshot)
                    self._next_number += num_dropped
                case QueuedReply(identity, payload):
                    self._requests.reply(identity, payload)
                case EndOfStream():
                    return False
        return True

    def _send(self, payload: bytes, event: Event | None = None) -> None:
        self._live.send_multipart(self._pack(payload))
        self._next_number += 1
        self._last_sent = time.monotonic()
        self._update_replica(payload, Event, event)

    def _update_replica(self, payload: bytes, expected: Any, event: Event | None = None) -> None:
        # Also if it cannot be decoded: a viewer needs a snapshot with a number after it.
        self._requests.invalidate_snapshot()
        # Decoding the sent bytes ensures that the replica is what a viewer has.
        try:
            if event is None:
                name = "Event" if expected is Event else None  # as viewers call it
                event = codec.decode(payload, expected, max_elements=MAX_STATE_ELEMENTS, name=name)
            touched = self._replica.apply(event)
        except WireError as error:
            self.last_error = str(error)
            self.num_undecodable += 1
            return
        if self._summarizer is not None:
            self._summarizer.observe(self._replica, touched, event)
        if isinstance(event, Step):
            self._step = event.step

    def _send_heartbeat_if_due(self) -> None:
        if time.monotonic() - self._last_sent >= self._info.heartbeat_interval:
            self._send(codec.encode(Heartbeat(time=self._clock(), step=self._step)))

    def _read_subscriptions(self) -> None:
        """Reads what viewers sent to the XPUB socket, which would be queued without limit.

        libzmq passes on the first subscription to a topic (1 and the topic) and the end of the last
        one (0 and the topic), also when a viewer is disconnected.
        """
        with contextlib.suppress(zmq.Again):
            for _ in range(_SUBSCRIPTIONS_PER_ROUND):
                message = self._live.recv(zmq.DONTWAIT)
                if message[:1] == b"\x01":
                    self.num_subscriptions += 1
                elif message[:1] == b"\x00":
                    self.num_subscriptions = max(self.num_subscriptions - 1, 0)

    def _pack(self, payload: frames.Buffer) -> list[frames.Buffer]:
        """Returns the frames of the next message of the stream, or of a reply before it."""
        return frames.pack(self._info.incarnation, self._next_number, payload)

    def _encode_snapshot(self, with_parts: bool) -> Iterator[bytes]:
        """Yields the `Snapshot`, followed by its `SnapshotPart`s if there are any."""
        head, chunks = snapshot.head(self._replica), self._snapshot_chunks()
        if with_parts:
            yield from snapshot_chunks.messages(head, chunks)
        else:
            yield snapshot_chunks.message(head, chunks)

    def _encode_summary(self) -> bytes | None:
        """Returns the summary, which is made once for all viewers that ask within a second."""
        self.has_summary_viewers = True
        now = time.monotonic()
        if self._summarizer is None:
            self._summarizer = Summarizer(self._replica)
        if self._summary is None or now - self._summary_at >= SECONDS_BETWEEN_SUMMARIES:
            summary = self._summarizer.summary(self._replica)
            self._summary = None if summary is None else codec.encode(summary)
            self._summary_at = now
        return self._summary

    def _end_summaries_if_due(self) -> None:
        if self.has_summary_viewers and not self._requests.has_summary_viewers():
            self.has_summary_viewers, self._summarizer, self._summary = False, None, None

    def _snapshot_chunks(self) -> Iterator[SnapshotChunk]:
        replica = self._replica
        for chunk in snapshot_chunks.chunks(
            snapshot.request_snapshots(replica), snapshot.cached_runs(replica)
        ):
            yield chunk
            time.sleep(_YIELD_SECONDS)
