"""What viewers can make an engine spend, and what an overflow leaves behind."""

import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import zmq

from seqtop.connection import ConnectionState
from seqtop.sequence import SequenceStatus
from seqtop.session import Session
from seqtop.state import EngineState
from seqtop.transport import (
    outbound_queue,
    pending_messages,
    publisher,
    request_handler,
    stream_server,
    subscriber,
)
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.transport.publisher import Publisher, PublishError
from seqtop.transport.stream_server import StreamServer
from seqtop.transport.token_bucket import TokenBucket
from seqtop.wire import codec, frames
from seqtop.wire.messages import (
    Abort,
    EngineStopped,
    Event,
    Heartbeat,
    InFlight,
    SequenceUpdate,
    Snapshot,
    SnapshotRequest,
)
from tests.support.hand_driven import HandDrivenEngine, arrival, engine_info, step
from tests.support.waiting import MILLISECONDS, SECONDS, wait_until


class Gate:
    """Holds the publisher's thread up at its first event, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        gate = self

        class GatedState(EngineState):
            def apply(self, event: object) -> object:
                gate.reached.set()
                gate.opened.wait()
                return super().apply(event)

        self.mirror = GatedState()


def test_queue_is_bounded_by_bytes(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MAX_QUEUED_BYTES", 10_000)
    gate = Gate()
    engine = Publisher(endpoint, engine_info(), gate.mirror)
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
    with Publisher(endpoint, engine_info(), EngineState()) as engine, Session(endpoint) as session:
        session.await_engine(SECONDS)
        monkeypatch.setattr(frames, "MAX_MESSAGE_BYTES", 1_000)
        engine.publish(msgspec.structs.replace(arrival(1), prompt="x" * 1_000))
        assert "more than viewers take" in (engine.last_error or "")
        engine.publish(arrival(2))
        wait_until(lambda: "req-2" in session.state.requests)
        assert session.link.num_missed == 1


def test_after_an_overflow_viewers_show_the_engine_again(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MAX_QUEUED_BYTES", 2_000)
    monkeypatch.setattr(publisher, "_SECONDS_BETWEEN_REPAIRS", 0.0)
    gate = Gate()
    truth = EngineState()  # what the engine itself knows
    engine = Publisher(endpoint, engine_info(), gate.mirror, repairs=True)

    def publish(event: object) -> None:
        truth.apply(event)
        engine.publish(event)

    try:
        assert gate.reached.wait(SECONDS)
        for number in range(200):
            publish(arrival(number))
        assert engine.num_dropped > 100
        assert not engine.wants_in_flight()  # there is no room yet
        gate.opened.set()
        with Session(endpoint) as session:
            session.await_engine(SECONDS)
            wait_until(engine.wants_in_flight)
            before = engine.num_dropped
            publish(step(0))  # cannot be understood without what was lost: it is not sent
            assert engine.num_dropped == before + 1
            engine.publish(in_flight(truth))
            assert not engine.wants_in_flight()
            publish(step(1))
            wait_until(lambda: session.state.step == 1)
            assert list(session.state.requests) == list(truth.requests)
            for sequence in truth.sequences.values():
                sequence.last_step = 0  # as of when it is known, which is all that is known of it
            assert session.state.sequences == truth.sequences
            assert session.state.num_by_status == truth.num_by_status
            assert session.state.num_anomalies == 0
            assert session.link.num_missed > 100
    finally:
        gate.opened.set()
        engine.close()


def in_flight(truth: EngineState) -> InFlight:
    """What an engine would say that knows `truth`, in which nothing has been computed."""
    return InFlight(
        time=truth.time,
        step=truth.step,
        stats=truth.stats,
        requests=[arrival(number) for number in truth.sequences],
        sequences=[
            SequenceUpdate(seq_id=number, status=SequenceStatus.WAITING, num_computed_tokens=0)
            for number in truth.sequences
        ],
    )


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
        question = codec.encode(SnapshotRequest())
        number = 0
        while len(encoded_at) < 5:
            number += 1
            engine.publish(arrival(number))
            for flood in flooding:
                for _ in range(20):
                    if flood.poll(0, zmq.POLLOUT):
                        flood.send(question)  # and none of them ever reads an answer
            with Session(endpoint) as late:  # who asks once is served all the same
                late.await_engine(SECONDS)
        wait_until(lambda: f"req-{number}" in session.state.requests)
        assert session.link.num_missed == session.link.num_resyncs == 0
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
        assert len(taken) == publisher.COMMANDS_AT_ONCE
        num_taken = len(taken)
        while taken := engine.commands():
            num_taken += len(taken)
        assert num_taken <= publisher.MAX_PENDING_COMMANDS + 10


def test_viewer_that_stops_reading_is_kept_so_many_messages_and_no_more(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MAX_VIEWER_BACKLOG", 20)
    with (
        Publisher(endpoint, engine_info(heartbeat_interval=1e6), EngineState()) as engine,
        Session(endpoint) as reading,
        zmq.Context() as context,
        context.socket(zmq.SUB) as stalled,
    ):
        reading.await_engine(SECONDS)
        stall(stalled, endpoint)
        for number in range(200):
            publish_large(engine, number)
            wait_until(lambda number=number: f"req-{number}" in reading.state.requests)
        num_held = 0
        while stalled.poll(300):
            num_held += len(stalled.recv_multipart()[2]) > LARGE
        assert 1 < num_held < 50  # what the two sockets and the kernel hold between them
        assert reading.link.num_missed == 0


LARGE = 100_000


def stall(viewer: zmq.Socket[bytes], endpoint: str) -> None:
    """Subscribe, so that everything would arrive from here on, and read no more."""
    viewer.rcvhwm = 1
    viewer.subscribe(b"")
    viewer.connect(endpoint)
    assert viewer.poll(MILLISECONDS)
    viewer.recv()


def publish_large(engine: Publisher, number: int) -> None:
    engine.publish(msgspec.structs.replace(arrival(number), prompt="x" * LARGE))


def test_viewer_keeps_so_many_bytes_while_it_waits_for_a_snapshot(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_messages, "MAX_KEPT_BYTES", 2_000)
    monkeypatch.setattr(subscriber, "_SNAPSHOT_RETRY_SECONDS", (0.1, 0.1))
    with HandDrivenEngine(endpoint) as engine, Session(endpoint) as session:
        engine.await_viewer()
        engine.send(engine_info())
        early = Snapshot(
            protocol_version=1,
            incarnation="one",
            sequence_number=0,
            state=msgspec.Raw(codec.encode(engine.state)),
        )
        for number in range(100):
            engine.send(arrival(number))
        wait_until(lambda: session.link.num_messages == 101)
        engine.answer(early)  # what followed on it has been let go
        wait_until(lambda: session.link.num_missed > 50)
        while session.link.state is not ConnectionState.LIVE:
            engine.answer()
            session.wait_for(ConnectionState.LIVE, timeout=1)
        assert len(session.state.requests) == 100


def test_allowance_comes_back_with_time_and_can_be_overdrawn_once() -> None:
    now = 0.0
    allowance = TokenBucket(rate=10, burst=5, clock=lambda: now)
    allowance.spend(5)
    assert allowance.seconds_to_go() == 0
    allowance.spend(1)
    assert allowance.seconds_to_go() == pytest.approx(0.1)
    now = 0.05
    assert allowance.seconds_to_go() == pytest.approx(0.05)
    now = 1e9
    allowance.spend(5)
    assert allowance.seconds_to_go() == 0
    allowance.spend(20)
    assert allowance.seconds_to_go() == pytest.approx(2)


def test_path_that_another_engine_uses_is_left_to_it(endpoint: str) -> None:
    with Publisher(endpoint, engine_info(), EngineState()) as first, Session(endpoint) as session:
        for taken in (endpoint, endpoint.removesuffix(".snapshot")):
            with pytest.raises(PublishError, match="already in use"):
                Publisher(taken, engine_info(incarnation="two"), EngineState())
        session.await_engine(SECONDS)
        first.publish(arrival(1))
        wait_until(lambda: "req-1" in session.state.requests)


def test_path_that_only_the_questions_of_another_use_is_left_to_it(endpoint: str) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        other.bind(snapshot_endpoint(endpoint))
        with pytest.raises(PublishError, match=r"\.snapshot is already in use"):
            Publisher(endpoint, engine_info(), EngineState())


def test_socket_that_a_crash_has_left_behind_is_no_obstacle(endpoint: str) -> None:
    path = endpoint.removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    assert Path(path).is_socket()
    with Publisher(endpoint, engine_info(), EngineState()), Session(endpoint) as session:
        session.await_engine(SECONDS)


def test_file_in_the_place_of_a_socket_is_not_removed(endpoint: str) -> None:
    path = Path(endpoint.removeprefix("ipc://"))
    path.write_text("years of work")
    with pytest.raises(PublishError, match="is not a socket"):
        Publisher(endpoint, engine_info(), EngineState())
    assert path.read_text() == "years of work"


def fail() -> Heartbeat:
    raise RuntimeError("it cannot be made")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (fail, "it cannot be made"),
        (lambda: EngineStopped(time=1.0, reason="\ud800"), "surrogates"),
        (lambda: EngineStopped(time=1.0, reason="x" * 2**26), "more than viewers take"),
    ],
)
def test_what_cannot_be_made_later_is_a_hole_that_is_counted_and_healed(
    endpoint: str, make: Callable[[], Event], why: str
) -> None:
    truth = EngineState()
    with (
        Publisher(endpoint, engine_info(), EngineState(), repairs=True) as engine,
        Session(endpoint) as session,
    ):
        session.await_engine(SECONDS)
        truth.apply(arrival(1))
        engine.publish_later(lambda: arrival(1))
        wait_until(lambda: session.state.requests.keys() == {"req-1"})
        engine.publish_later(make)
        wait_until(lambda: engine._server.num_lost == 1)
        engine.publish_later(lambda: arrival(3))  # dropped: nobody could understand it
        assert engine.num_dropped == 2
        assert why in str(engine.last_error)
        truth.apply(arrival(3))
        wait_until(engine.wants_in_flight)
        engine.publish(in_flight(truth))
        engine.publish_later(lambda: arrival(4))
        wait_until(lambda: session.state.requests.keys() == {"req-1", "req-3", "req-4"})
        assert session.link.num_missed == 2
        assert not engine.wants_in_flight()


def test_publisher_dozes_over_what_nobody_hears(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until somebody comes, or there is much of it."""
    monkeypatch.setattr(stream_server, "SECONDS_BETWEEN_REFLECTIONS", 1e6)
    info = msgspec.structs.replace(engine_info(), heartbeat_interval=1e6)
    made: list[int] = []

    def make(number: int) -> Event:
        made.append(number)
        return arrival(number)

    with Publisher(endpoint, info, EngineState()) as engine:

        def is_dozing() -> bool:
            return engine._inbox._dozing and engine._inbox._asleep

        wait_until(is_dozing)
        for number in range(1, 50):
            engine.publish_later(partial(make, number))
        assert not made
        with Session(endpoint) as session:
            wait_until(lambda: len(session.state.requests) == 49)
            # From now on it is heard soon.
            engine.publish_later(partial(make, 50))
            wait_until(lambda: "req-50" in session.state.requests)
            assert session.link.num_missed == 0
        wait_until(lambda: not engine.has_listeners and is_dozing())
        # Twice as many as are urgent, for it may look up once when a viewer leaves.
        for number in range(51, 51 + 2 * outbound_queue.MANY_ITEMS):
            engine.publish_later(partial(make, number))
        wait_until(lambda: made[-1] >= 50 + outbound_queue.MANY_ITEMS)
        wait_until(is_dozing)
        engine.publish_later(partial(make, 1001))
        engine.publish(msgspec.structs.replace(arrival(1002), prompt="x" * 2**20))
        wait_until(lambda: made[-1] == 1001)


def test_what_the_mirror_cannot_read_is_a_hole_that_is_healed(endpoint: str) -> None:
    truth = EngineState()
    with (
        Publisher(endpoint, engine_info(), EngineState(), repairs=True) as engine,
        Session(endpoint) as session,
    ):
        session.await_engine(SECONDS)
        truth.apply(arrival(1))
        engine.publish(arrival(1))
        # It can be encoded; but no viewer takes it either.
        engine.publish(msgspec.structs.replace(arrival(2), request_id=2))
        wait_until(lambda: engine._server.num_lost == 1)
        engine.publish(arrival(3))  # dropped
        assert engine.num_dropped == 2
        assert "request_id" in str(engine.last_error)
        truth.apply(arrival(4))
        wait_until(engine.wants_in_flight)
        engine.publish(in_flight(truth))
        engine.publish(arrival(5))
        wait_until(lambda: session.state.requests.keys() == {"req-1", "req-4", "req-5"})


def test_what_is_made_later_keeps_its_turn(endpoint: str) -> None:
    with Publisher(endpoint, engine_info(), EngineState()) as engine, Session(endpoint) as session:
        session.await_engine(SECONDS)
        for number in range(1, 100):
            if number % 3:
                engine.publish_later(partial(arrival, number))
            else:
                engine.publish(arrival(number))
        wait_until(lambda: len(session.state.requests) == 99)
        assert list(session.state.requests) == [f"req-{number}" for number in range(1, 100)]
        assert session.state.num_anomalies == 0
        assert session.link.num_resyncs == 0
