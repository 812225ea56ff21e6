"""The engine's end over real sockets, followed by real sessions."""

import select
import threading
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from seqtop.connection import ConnectionState, ControlError
from seqtop.sequence import SamplingParams
from seqtop.session import Session
from seqtop.state import EngineState
from seqtop.transport import control_client, publisher
from seqtop.transport.endpoints import EndpointError, check, check_bind, snapshot_endpoint
from seqtop.transport.outbound_queue import OutboundQueue, QueueFullError
from seqtop.transport.publisher import Publisher, PublishError
from seqtop.wire import codec
from seqtop.wire.messages import Abort, SnapshotRequest, Submit
from tests.support.hand_driven import arrival, engine_info, step
from tests.support.waiting import MILLISECONDS, SECONDS, wait_until


@pytest.fixture
def engine(endpoint: str) -> Iterator[Publisher]:
    with Publisher(endpoint, engine_info(control=True), EngineState()) as running:
        yield running


def test_two_viewers_that_join_at_different_times_agree(engine: Publisher) -> None:
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


def test_heartbeats_keep_an_idle_engine_alive_in_the_viewer(engine: Publisher) -> None:
    with Session(engine.endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        before = session.sequence_number
        wait_until(lambda: session.sequence_number >= before + 3)
        assert session.link.num_missed == 0


def test_goodbye_arrives(engine: Publisher) -> None:
    with Session(engine.endpoint) as session:
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        engine.publish(arrival(1))
        engine.close("time to go")
        assert session.wait_for(ConnectionState.STOPPED, timeout=SECONDS)
        assert session.link.detail == "time to go"
        assert "req-1" in session.state.requests


def test_dropped_messages_are_counted_and_healed(endpoint: str) -> None:
    with (
        Publisher(endpoint, engine_info(), EngineState()) as engine,
        Session(endpoint) as session,
    ):
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        engine.publish(object())  # type: ignore[arg-type]  # cannot be encoded
        assert engine.num_dropped == 1
        assert "object has no form on the wire" in (engine.last_error or "")
        engine.publish(arrival(1))
        wait_until(lambda: session.link.num_missed == 1)
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        wait_until(lambda: "req-1" in session.state.requests)


def test_publishing_to_a_stalled_thread_drops_instead_of_blocking(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "MAX_QUEUED_MESSAGES", 10)
    stalled, release = threading.Event(), threading.Event()

    class StallingMirror:
        def apply(self, event: object) -> None:
            stalled.set()
            release.wait()

    engine = Publisher(endpoint, engine_info(), StallingMirror())
    try:
        assert stalled.wait(SECONDS)
        for number in range(1_000):
            engine.publish(arrival(number))
        assert engine.num_dropped > 900
    finally:
        release.set()
        engine.close()


def test_what_is_published_after_the_end_is_dropped(endpoint: str) -> None:
    engine = Publisher(endpoint, engine_info(), EngineState())
    engine.close()
    engine.publish(arrival(1))
    assert (engine.num_dropped, engine.last_error) == (1, "the publisher has been closed")


def test_whoever_sleeps_is_woken_and_whoever_does_not_is_left_alone() -> None:
    queued = OutboundQueue(2)
    assert queued.may_sleep()
    queued.put(b"a")
    assert select.select([queued], [], [], 10)[0], "who polls is woken"
    queued.awake(was_woken=True)
    queued.put(b"b", b"c")
    assert not select.select([queued], [], [], 0)[0], "who is awake looks by itself"
    assert not queued.may_sleep()
    with pytest.raises(QueueFullError):
        queued.put(b"d")
    assert [queued.take(), queued.take(), queued.take()] == [(b"a",), (b"b", b"c"), None]
    queued.close()


def test_submit_and_abort_reach_the_engine_and_its_answer_returns(engine: Publisher) -> None:
    answers: list[object] = []

    def view() -> None:
        with Session(engine.endpoint) as session:
            answers.append(session.submit("Once", SamplingParams(max_tokens=3)))
            with pytest.raises(ControlError, match="no such request"):
                session.abort("req-9")
            answers.append("refused")

    viewer = threading.Thread(target=view)
    viewer.start()
    (submit,) = engine.commands(timeout=SECONDS)
    assert isinstance(submit.command, Submit)
    assert submit.command.prompt == "Once"
    assert submit.command.sampling_params.max_tokens == 3
    submit.accept("req-1")
    (abort,) = engine.commands(timeout=SECONDS)
    assert isinstance(abort.command, Abort)
    abort.refuse("no such request: req-9")
    viewer.join()
    assert answers == ["req-1", "refused"]
    assert engine.commands() == []


def test_control_is_refused_where_the_engine_does_not_grant_it(endpoint: str) -> None:
    with (
        Publisher(endpoint, engine_info(control=False), EngineState()) as engine,
        Session(endpoint) as session,
    ):
        with pytest.raises(ControlError, match="does not accept control"):
            session.submit("x", SamplingParams())
        assert engine.commands() == []


def test_control_without_an_engine_times_out(endpoint: str) -> None:
    with pytest.raises(ControlError, match="did not answer"):
        control_client.ask(endpoint, Abort(request_id="x"), timeout=0.05)


def test_viewer_of_another_version_is_told_so(engine: Publisher) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(snapshot_endpoint(engine.endpoint))
        socket.send(codec.encode(SnapshotRequest(protocol_version=99)))
        assert socket.poll(MILLISECONDS)
        assert b"speaks version 2" in socket.recv_multipart()[0]
        socket.send(b"\xc1 garbage")
        assert socket.poll(MILLISECONDS)
        assert b"cannot be read" in socket.recv_multipart()[0]


def test_endpoint_in_use_is_said_in_one_sentence() -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1", min_port=20_000, max_port=60_000)
        with pytest.raises(PublishError, match="already in use"):
            Publisher(f"tcp://127.0.0.1:{port}", engine_info(), EngineState())


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "5557",
        "127.0.0.1:5557",
        "tcp://",
        "tcp://host",
        "tcp://host:0",
        "tcp://h:65535",
        "tcp://[2J",
        "tcp://[::1:5557",
        "x://y",
    ],
)
def test_malformed_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(EndpointError):
        check(endpoint)


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "192.0.2.1", "example.org", "[::]"])
def test_binding_beyond_this_machine_must_be_asked_for(host: str) -> None:
    endpoint = f"tcp://{host}:5557"
    with pytest.raises(EndpointError, match="--insecure"):
        check_bind(endpoint, insecure=False)
    assert check_bind(endpoint, insecure=True) == endpoint


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.0.0.1:5557", "tcp://localhost:1", "tcp://[::1]:5557", "ipc:///tmp/x"]
)
def test_binding_on_this_machine_is_fine(endpoint: str) -> None:
    assert check_bind(endpoint, insecure=False) == endpoint


def test_snapshots_are_served_next_door() -> None:
    assert snapshot_endpoint("tcp://127.0.0.1:5557") == "tcp://127.0.0.1:5558"
    assert snapshot_endpoint("ipc:///tmp/x") == "ipc:///tmp/x.snapshot"


def test_unknown_trailing_fields_of_a_newer_engine_are_ignored() -> None:
    elements = msgspec.msgpack.decode(codec.encode(arrival(1)))
    newer = msgspec.msgpack.encode([*elements, "a field of the future"])
    assert codec.decode(newer, type(arrival(1))) == arrival(1)
