"""The publisher's thread: late joins, heartbeats, slow viewers and losses."""

import msgspec
import pytest
import zmq

from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport import (
    publisher,
)
from seqtop.transport.connection import ConnectionState
from seqtop.transport.publisher import MessagePublisher
from tests.support.events import arrival, engine_info, engine_snapshot, step
from tests.support.waiting import MILLISECONDS, SECONDS, wait_until


def test_two_viewers_that_join_at_different_times_agree(engine: MessagePublisher) -> None:
    with Session(engine.endpoint) as early:
        assert early.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        for number in range(5):
            engine.publish(arrival(number))
        with Session(engine.endpoint) as late:
            assert late.wait_for(ConnectionState.LIVE, timeout=SECONDS)
            engine.publish(step(0))
            wait_until(lambda: early.state.step == late.state.step == 0)
            wait_until(lambda: early.sequence_number == late.sequence_number)
            with early.lock, late.lock:
                assert early.state == late.state
            assert len(late.state.requests) == 5


def test_heartbeats_keep_an_idle_engine_alive_in_the_viewer(engine: MessagePublisher) -> None:
    with Session(engine.endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        before = session.sequence_number
        wait_until(lambda: session.sequence_number >= before + 3)
        assert session.connection.num_missed == 0


def test_viewer_that_stops_reading_is_kept_so_many_messages_and_no_more(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MAX_VIEWER_BACKLOG", 20)
    with (
        MessagePublisher(endpoint, engine_info(heartbeat_interval=1e6), EngineState()) as engine,
        Session(endpoint) as reading,
        zmq.Context() as context,
        context.socket(zmq.SUB) as stalled,
    ):
        reading.await_engine(SECONDS)
        stall(stalled, endpoint)
        for number in range(200):
            publish_large(engine, number)
            wait_until(lambda: f"req-{number}" in reading.state.requests)  # noqa: B023
        num_held = 0
        while stalled.poll(300):
            num_held += len(stalled.recv_multipart()[2]) > LARGE
        assert 1 < num_held < 50  # what the two sockets and the kernel hold between them
        assert reading.connection.num_missed == 0


LARGE = 100_000


def stall(viewer: zmq.Socket[bytes], endpoint: str) -> None:
    """Subscribe, so that everything would arrive from here on, and read no more."""
    viewer.rcvhwm = 1
    viewer.subscribe(b"")
    viewer.connect(endpoint)
    assert viewer.poll(MILLISECONDS)
    viewer.recv()


def publish_large(engine: MessagePublisher, number: int) -> None:
    engine.publish(msgspec.structs.replace(arrival(number), prompt="x" * LARGE))


def test_event_that_the_replica_cannot_decode_is_a_gap_that_is_repaired(endpoint: str) -> None:
    truth = EngineState()
    with (
        MessagePublisher(endpoint, engine_info(), EngineState(), repairs=True) as engine,
        Session(endpoint) as session,
    ):
        session.await_engine(SECONDS)
        truth.apply(arrival(1))
        engine.publish(arrival(1))
        # It can be encoded; but no viewer takes it either. One: as soon as the replica has refused
        # it, the publisher drops what follows.
        engine.publish(msgspec.structs.replace(arrival(2), request_id=2))
        wait_until(lambda: engine._server.num_undecodable == 1)
        assert engine.needs_snapshot()
        assert engine.num_dropped == 1
        engine.publish(arrival(3))  # dropped
        assert engine.num_dropped == 2
        assert "request_id" in str(engine.last_error)
        truth.apply(arrival(4))
        wait_until(engine.needs_snapshot)
        engine.publish(engine_snapshot(truth))
        engine.publish(arrival(5))
        wait_until(lambda: session.state.requests.keys() == {"req-1", "req-4", "req-5"})
