"""Limits on what viewers may request."""

import time
from collections.abc import Iterator
from itertools import pairwise
from queue import Queue
from types import SimpleNamespace

import pytest
import zmq

from seqtop.session import Session
from seqtop.state import EngineState
from seqtop.transport import (
    publisher,
    request_handler,
)
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.transport.publisher import Publisher
from seqtop.transport.request_handler import RequestHandler
from seqtop.transport.stream_server import StreamServer
from seqtop.wire import codec
from seqtop.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    SnapshotRequest,
)
from tests.support.hand_driven import arrival, engine_info
from tests.support.waiting import MILLISECONDS, SECONDS, wait_until


@pytest.fixture
def connected_sockets() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """The engine's socket, and a viewer's that is connected to it."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind("inproc://requests")
        with context.socket(zmq.DEALER) as viewer:
            viewer.connect("inproc://requests")
            yield router, viewer


@pytest.mark.parametrize(
    ("elapsed", "worked", "next_after"),
    [
        (1.0, 0.001, 1.0),  # others had the processor: the stream's turn, for as long
        (1.0, 1.0, 9.0),
        (0.001, 0.001, request_handler.SECONDS_BETWEEN_SNAPSHOTS - 0.001),
    ],
)
def test_the_next_snapshot_is_as_far_off_as_this_one_was_work(
    connected_sockets: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    elapsed: float,
    worked: float,
    next_after: float,
) -> None:
    router, viewer = connected_sockets
    now, work = [100.0], [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: work[0])
    monkeypatch.setattr(request_handler, "time", clock)

    def encode() -> Iterator[list[bytes]]:
        now[0] += elapsed
        work[0] += worked
        yield [b"a snapshot"]

    handler = RequestHandler(router, engine_info(), None, Queue(), encode)
    request = codec.encode(SnapshotRequest(protocol_version=PROTOCOL_VERSION))

    def request_snapshot() -> None:
        viewer.send(request)
        assert router.poll(MILLISECONDS)
        handler.read()

    request_snapshot()
    assert handler.seconds_until_snapshot() == 0
    handler.send_snapshots()
    assert viewer.poll(MILLISECONDS)
    handler.invalidate_snapshot()
    request_snapshot()
    assert handler.seconds_until_snapshot() == pytest.approx(next_after)


def test_flood_of_snapshot_requests_costs_a_share_of_the_time_and_no_message(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_handler, "SECONDS_BETWEEN_SNAPSHOTS", 0.1)
    encoded_at: list[float] = []

    class Watched(StreamServer):
        def _encode_snapshot(self) -> bytes:
            encoded_at.append(time.monotonic())
            return super()._encode_snapshot()

    monkeypatch.setattr(publisher, "StreamServer", Watched)
    with (
        Publisher(endpoint, engine_info(), EngineState()) as engine,
        Session(endpoint) as session,
        zmq.Context() as context,
    ):
        session.await_engine(SECONDS)
        before = session.sequence_number
        flooding = []
        for _ in range(10):
            flood = context.socket(zmq.DEALER)
            flood.linger = 0
            flood.connect(snapshot_endpoint(endpoint))
            flooding.append(flood)
        request = codec.encode(SnapshotRequest())
        number = 0
        while len(encoded_at) < 5:
            number += 1
            engine.publish(arrival(number))
            for flood in flooding:
                for _ in range(20):
                    if flood.poll(0, zmq.POLLOUT):
                        flood.send(request)  # and none of them ever reads an answer
            with Session(endpoint) as late:  # who asks once is served all the same
                late.await_engine(SECONDS)
        wait_until(lambda: f"req-{number}" in session.state.requests)
        assert session.connection.num_missed == session.connection.num_resyncs == 0
        assert session.sequence_number >= before + number
        gaps = [later - earlier for earlier, later in pairwise(encoded_at)]
        assert min(gaps[1:]) > 0.09
        for flood in flooding:
            flood.close()


def test_flood_of_commands_reaches_the_engine_in_small_portions(endpoint: str) -> None:
    with (
        Publisher(endpoint, engine_info(control=True), EngineState()) as engine,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as flood,
    ):
        flood.linger = 0
        flood.connect(snapshot_endpoint(endpoint))
        for number in range(publisher.MAX_PENDING_COMMANDS + 10):
            flood.send(codec.encode(Abort(request_id=f"req-{number}")))
        assert flood.poll(MILLISECONDS)  # the first that finds no room
        assert b"too many commands" in flood.recv_multipart()[0]
        taken = engine.commands(timeout=SECONDS)
        assert len(taken) == publisher.COMMANDS_PER_CALL
        num_taken = len(taken)
        while taken := engine.commands():
            num_taken += len(taken)
        assert num_taken <= publisher.MAX_PENDING_COMMANDS + 10


@pytest.fixture
def engine(endpoint: str) -> Iterator[Publisher]:
    with Publisher(endpoint, engine_info(control=True), EngineState()) as running:
        yield running


def test_viewer_of_another_version_is_told_so(engine: Publisher) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(snapshot_endpoint(engine.endpoint))
        socket.send(codec.encode(SnapshotRequest(protocol_version=99)))
        assert socket.poll(MILLISECONDS)
        assert b"uses version 2" in socket.recv_multipart()[0]
        socket.send(b"\xc1 garbage")
        assert socket.poll(MILLISECONDS)
        assert b"cannot be read" in socket.recv_multipart()[0]
