"""The engine's thread: it never waits, and losses are counted and repaired."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
import zmq

from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport import (
    publisher,
)
from seqtop.transport.connection import ConnectionState
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.transport.outbound_queue import OutboundQueue
from seqtop.transport.publisher import MessagePublisher, PublishError
from seqtop.transport.stream_server import StreamServer
from seqtop.wire import codec, frames
from seqtop.wire.messages import (
    EngineStopped,
    Event,
)
from seqtop.wire.snapshot import Snapshot
from tests.support.events import arrival, engine_info, engine_snapshot, step
from tests.support.waiting import SECONDS, wait_until


def test_goodbye_arrives(engine: MessagePublisher) -> None:
    with Session(engine.endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        engine.publish(arrival(1))
        engine.close("time to go")
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
        assert session.connection.detail == "time to go"
        assert "req-1" in session.state.requests


GREETING = 64
"""Bytes of the beginning of ZMTP, which libzmq sends before it reads."""


@pytest.mark.parametrize("address", [str, snapshot_endpoint])
@pytest.mark.parametrize(
    "sent",
    [b"\x01\x00" + b"\x02\x00\x01", b"\xff" + bytes(8) + b"\x7f\x01" + bytes(53), b"GET / HTTP"],
    ids=["ZMTP 1.0", "ZMTP 2.0", "HTTP"],
)
def test_client_without_the_handshake_of_zmtp_3_is_disconnected(
    engine: MessagePublisher, address: Callable[[str], str], sent: bytes
) -> None:
    with Session(engine.endpoint) as session, socket.socket(socket.AF_UNIX) as client:
        session.await_engine(SECONDS)
        client.settimeout(SECONDS)
        client.connect(address(engine.endpoint).removeprefix("ipc://"))
        client.sendall(sent)
        num_bytes = 0
        with contextlib.suppress(ConnectionResetError):
            while received := client.recv(1_000):
                num_bytes += len(received)
                assert num_bytes <= GREETING, "libzmq took it for a viewer"
        engine.publish(arrival(1))
        wait_until(lambda: "req-1" in session.state.requests)


def test_dropped_messages_are_counted_and_healed(endpoint: str) -> None:
    with (
        MessagePublisher(endpoint, engine_info(), EngineState()) as engine,
        Session(endpoint) as session,
    ):
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        engine.publish(object())  # type: ignore[arg-type]  # cannot be encoded
        assert engine.num_dropped == 1
        assert "object has no form on the wire" in (engine.last_error or "")
        engine.publish(arrival(1))
        wait_until(lambda: session.connection.num_missed == 1)
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        wait_until(lambda: "req-1" in session.state.requests)


def test_publishing_to_a_stalled_thread_drops_instead_of_blocking(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MAX_QUEUED_MESSAGES", 10)
    stalled, release = threading.Event(), threading.Event()

    class StallingReplica(EngineState):
        def apply(self, event: Event | Snapshot) -> Iterable[int]:
            stalled.set()
            release.wait()
            return ()

    engine = MessagePublisher(endpoint, engine_info(), StallingReplica())
    try:
        assert stalled.wait(SECONDS)
        for number in range(1_000):
            engine.publish(arrival(number))
        assert engine.num_dropped > 900
    finally:
        release.set()
        engine.close()


def test_a_backlog_that_takes_too_long_is_left_out_at_the_end(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "_CLOSE_SECONDS", 0.0)
    stalled, release = threading.Event(), threading.Event()
    applied: list[Event | Snapshot] = []

    class StallingReplica(EngineState):
        def apply(self, event: Event | Snapshot) -> Iterable[int]:
            applied.append(event)
            stalled.set()
            release.wait()
            return ()

    stop = StreamServer.stop

    def stop_and_go_on(server: StreamServer) -> None:
        stop(server)
        release.set()

    monkeypatch.setattr(StreamServer, "stop", stop_and_go_on)
    engine = MessagePublisher(endpoint, engine_info(), StallingReplica())
    assert stalled.wait(SECONDS)
    for number in range(1_000):
        engine.publish(arrival(number))
    engine.close()
    assert len(applied) == 1
    assert "seqtop-publisher" not in {thread.name for thread in threading.enumerate()}


def test_messages_published_after_the_end_are_dropped(endpoint: str) -> None:
    engine = MessagePublisher(endpoint, engine_info(), EngineState())
    engine.close()
    engine.publish(arrival(1))
    assert (engine.num_dropped, engine.last_error) == (1, "the publisher has been closed")


def test_endpoint_in_use_is_said_in_one_sentence() -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1", min_port=20_000, max_port=60_000)
        with pytest.raises(PublishError, match="already in use"):
            MessagePublisher(f"tcp://127.0.0.1:{port}", engine_info(), EngineState())


def test_unknown_trailing_fields_of_a_newer_engine_are_ignored() -> None:
    elements = msgspec.msgpack.decode(codec.encode(arrival(1)))
    newer = msgspec.msgpack.encode([*elements, "a field of the future"])
    assert codec.decode(newer, type(arrival(1))) == arrival(1)


class Gate:
    """Holds the publisher's thread up at its first event, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        gate = self

        class GatedState(EngineState):
            def apply(self, event: Event | Snapshot) -> Iterable[int]:
                gate.reached.set()
                gate.opened.wait()
                return super().apply(event)

        self.replica = GatedState()


def test_queue_is_bounded_by_bytes(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MAX_QUEUED_BYTES", 10_000)
    gate = Gate()
    engine = MessagePublisher(endpoint, engine_info(), gate.replica)
    try:
        assert gate.reached.wait(SECONDS)
        for number in range(1_000):
            engine.publish(arrival(number))
        num_queued = 1_000 - engine.num_dropped
        assert 0 < num_queued * len(codec.encode(arrival(1))) <= 10_000
        assert "wait to be sent already" in (engine.last_error or "")
    finally:
        gate.opened.set()
        engine.close()


def test_message_that_viewers_would_refuse_is_not_sent(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        MessagePublisher(endpoint, engine_info(), EngineState()) as engine,
        Session(endpoint) as session,
    ):
        session.await_engine(SECONDS)
        monkeypatch.setattr(frames, "MAX_MESSAGE_BYTES", 1_000)
        engine.publish(msgspec.structs.replace(arrival(1), prompt="x" * 1_000))
        assert "larger than viewers accept" in (engine.last_error or "")
        engine.publish(arrival(2))
        wait_until(lambda: "req-2" in session.state.requests)
        assert session.connection.num_missed == 1


def test_after_an_overflow_viewers_show_the_engine_again(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MAX_QUEUED_BYTES", 2_000)
    monkeypatch.setattr(publisher, "_SECONDS_BETWEEN_REPAIRS", 0.0)
    gate = Gate()
    truth = EngineState()  # what the engine itself knows
    engine = MessagePublisher(endpoint, engine_info(), gate.replica, repairs=True)

    def publish(event: Event) -> None:
        truth.apply(event)
        engine.publish(event)

    try:
        assert gate.reached.wait(SECONDS)
        for number in range(200):
            publish(arrival(number))
        assert engine.num_dropped > 100
        assert not engine.needs_snapshot()  # there is no room yet
        gate.opened.set()
        with Session(endpoint) as session:
            session.await_engine(SECONDS)
            wait_until(engine.needs_snapshot)
            before = engine.num_dropped
            publish(step(0))  # cannot be understood without what was lost: it is not sent
            assert engine.num_dropped == before + 1
            engine.publish(engine_snapshot(truth))
            assert not engine.needs_snapshot()
            publish(step(1))
            wait_until(lambda: session.state.step == 1)
            assert list(session.state.requests) == list(truth.requests)
            for sequence in truth.sequences.values():
                sequence.last_step = 0  # as of when it is known, which is all that is known of it
            assert session.state.sequences == truth.sequences
            assert session.state.num_by_status == truth.num_by_status
            assert session.state.num_anomalies == 0
            assert session.connection.num_missed > 100
    finally:
        gate.opened.set()
        engine.close()


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (EngineStopped(time=1.0, reason="\ud800"), "surrogates"),
        (EngineStopped(time=1.0, reason="x" * 2**26), "larger than viewers accept"),
    ],
    ids=["cannot be encoded", "too large"],
)
def test_event_that_cannot_be_sent_is_a_gap_that_is_counted_and_repaired(
    endpoint: str, event: Event, reason: str
) -> None:
    truth = EngineState()
    with (
        MessagePublisher(endpoint, engine_info(), EngineState(), repairs=True) as engine,
        Session(endpoint) as session,
    ):
        session.await_engine(SECONDS)
        truth.apply(arrival(1))
        engine.publish(arrival(1))
        wait_until(lambda: session.state.requests.keys() == {"req-1"})
        engine.publish(event)
        engine.publish(arrival(3))  # dropped: no viewer could interpret it
        assert engine.num_dropped == 2
        assert reason in str(engine.last_error)
        truth.apply(arrival(3))
        wait_until(engine.needs_snapshot)
        engine.publish(engine_snapshot(truth))
        engine.publish(arrival(4))
        wait_until(lambda: session.state.requests.keys() == {"req-1", "req-3", "req-4"})
        assert session.connection.num_missed == 2
        assert not engine.needs_snapshot()


def test_a_snapshot_has_the_repair_and_its_number_or_neither(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = OutboundQueue.put

    def put_and_pause(queue: OutboundQueue, item: Any) -> None:
        put(queue, item)
        time.sleep(0.05)  # as an engine whose thread has to wait for the interpreter

    monkeypatch.setattr(OutboundQueue, "put", put_and_pause)
    truth = EngineState()
    info = engine_info(heartbeat_interval=0.0)  # so that a viewer sees each new number
    with (
        MessagePublisher(endpoint, info, EngineState(), repairs=True) as engine,
        Session(endpoint) as session,
    ):
        session.await_engine(SECONDS)
        engine.count_lost(1, "the arrival could not be made")
        truth.apply(arrival(1))
        assert engine.needs_snapshot()
        engine.publish(engine_snapshot(truth))
        wait_until(lambda: session.state.requests.keys() == truth.requests.keys())


def test_events_arrive_in_order(endpoint: str) -> None:
    with (
        MessagePublisher(endpoint, engine_info(), EngineState()) as engine,
        Session(endpoint) as session,
    ):
        session.await_engine(SECONDS)
        for number in range(1, 100):
            engine.publish(arrival(number))
        wait_until(lambda: len(session.state.requests) == 99)
        assert list(session.state.requests) == [f"req-{number}" for number in range(1, 100)]
        assert session.state.num_anomalies == 0
        assert session.connection.num_resyncs == 0
