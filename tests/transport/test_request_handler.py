"""Limits on what viewers may request."""

import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Queue
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import pytest
import zmq

from seqtop.live.session import Session
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.transport import (
    publisher,
    request_handler,
)
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.transport.publisher import MessagePublisher
from seqtop.transport.request_handler import RequestHandler
from seqtop.transport.stream_server import StreamServer
from seqtop.wire import codec, frames, parsing, snapshot_chunks
from seqtop.wire.messages import (
    Abort,
    Refused,
    SnapshotRequest,
    Submit,
)
from seqtop.wire.snapshot import Snapshot, SnapshotPart
from tests.support.events import arrival, engine_info
from tests.support.waiting import MILLISECONDS, SECONDS, wait_until


def framed(payload: frames.Buffer) -> list[frames.Buffer]:
    """Packs a reply as the stream's server does."""
    return frames.pack("one", 0, payload)


def encode_nothing(with_parts: bool) -> Iterator[bytes]:
    yield from ()


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

    def encode(with_parts: bool) -> Iterator[bytes]:
        now[0] += elapsed
        work[0] += worked
        yield b"a snapshot"

    handler = RequestHandler(router, engine_info(), None, Queue(), encode, lambda: None, framed)
    request = codec.encode(SnapshotRequest())

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
    num_encoded = 0

    class Watched(StreamServer):
        def _encode_snapshot(self, with_parts: bool) -> Iterator[bytes]:
            nonlocal num_encoded
            num_encoded += 1
            return super()._encode_snapshot(with_parts)

    monkeypatch.setattr(publisher, "StreamServer", Watched)
    with (
        MessagePublisher(endpoint, engine_info(), EngineState()) as engine,
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
        number = num_requests = 0
        while num_encoded < 5:
            number += 1
            engine.publish(arrival(number))
            for flood in flooding:
                for _ in range(20):
                    if flood.poll(0, zmq.POLLOUT):
                        flood.send(request)  # and none of them ever reads an answer
                        num_requests += 1
            with Session(endpoint) as late:  # who asks once is served all the same
                late.await_engine(SECONDS)
        wait_until(lambda: f"req-{number}" in session.state.requests)
        assert session.connection.num_missed == session.connection.num_resyncs == 0
        assert session.sequence_number >= before + number
        assert num_requests > 20 * num_encoded
        for flood in flooding:
            flood.close()


def test_flood_of_commands_reaches_the_engine_in_small_portions(endpoint: str) -> None:
    with (
        MessagePublisher(endpoint, engine_info(control=True), EngineState()) as engine,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as flood,
    ):
        flood.linger = 0
        flood.connect(snapshot_endpoint(endpoint))
        for number in range(publisher.MAX_PENDING_COMMANDS + 10):
            flood.send(codec.encode(Abort(request_id=f"req-{number}")))
        assert flood.poll(MILLISECONDS)  # the first that finds no room
        assert b"too many commands" in flood.recv_multipart()[-1]
        taken = engine.commands(timeout=SECONDS)
        assert len(taken) == publisher.COMMANDS_PER_CALL
        num_taken = len(taken)
        while taken := engine.commands():
            num_taken += len(taken)
        assert num_taken <= publisher.MAX_PENDING_COMMANDS + 10


def test_a_request_that_cannot_be_read_is_refused_with_the_version_of_the_engine(
    engine: MessagePublisher,
) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(snapshot_endpoint(engine.endpoint))
        socket.send(b"\xc1 garbage")
        assert socket.poll(MILLISECONDS)
        topic, _, reply = socket.recv_multipart()
        assert topic.startswith(b"seqtop/3/")
        assert b"cannot be read" in reply


def test_parts_are_for_viewers_that_ask_for_them(endpoint: str) -> None:
    with (
        MessagePublisher(endpoint, engine_info(), EngineState()) as engine,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
    ):
        for number in range(3):
            engine.publish(
                msgspec.structs.replace(arrival(number), prompt="x" * snapshot_chunks.CHUNK_BYTES)
            )
        socket.connect(snapshot_endpoint(endpoint))
        names: dict[bool, list[str]] = {}
        for with_parts in (False, True):
            requests: list[str] = []
            while len(requests) < 3:  # the first snapshots may be those of fewer arrivals
                socket.send(codec.encode(SnapshotRequest(with_parts=with_parts)))
                requests, names[with_parts] = [], []
                is_last = False
                while not is_last:
                    assert socket.poll(MILLISECONDS)
                    reply = parsing.reply(socket.recv_multipart()[-1])
                    assert isinstance(reply, Snapshot | SnapshotPart)
                    names[with_parts].append(type(reply).__name__)
                    requests += [whole.arrival.request_id for whole in reply.requests]
                    is_last = not (
                        reply.has_parts if isinstance(reply, Snapshot) else not reply.is_last
                    )
            assert requests == ["req-0", "req-1", "req-2"]
        assert names == {False: ["Snapshot"], True: ["Snapshot", "SnapshotPart", "SnapshotPart"]}


def many_lists(count: int) -> bytes:
    """An array of empty arrays, which takes 72 times its size in memory when it is decoded."""
    return b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count


def submit_with_bomb(count: int) -> bytes:
    """A valid `Submit` with as many empty arrays in its extra arguments."""
    return b"\x93\xa6Submit\xa1x\x81\xaaextra_args\x81\xa1a" + many_lists(count)


class Asked(NamedTuple):
    """The effect of requests on a handler."""

    answers: list[str]
    num_decoded: int
    """Bytes of the requests that were decoded."""
    seconds_until_readable: float


@pytest.fixture
def ask(
    connected_sockets: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Asked]:
    """Sends requests to a handler, and returns their effect."""
    router, viewer = connected_sockets
    decoded: list[int] = []
    decode = parsing.command
    monkeypatch.setattr(
        parsing, "command", lambda payload: decoded.append(len(payload)) or decode(payload)
    )

    def send(*requests: bytes, control: bool = False) -> Asked:
        handler = RequestHandler(
            router,
            engine_info(control=control),
            None,
            Queue(),
            encode_nothing,
            lambda: None,
            framed,
        )
        answers = []
        for request in requests:
            viewer.send(request)
            assert router.poll(MILLISECONDS)
            handler.read()
            if viewer.poll(100):
                reply = parsing.reply(viewer.recv_multipart()[-1])
                assert isinstance(reply, Refused)
                answers.append(reply.error)
        return Asked(answers, sum(decoded), handler.seconds_until_readable())

    return send


def test_commands_are_refused_undecoded_without_control(ask: Callable[..., Asked]) -> None:
    params = SamplingParams()
    submit = codec.encode(Submit(prompt="x", sampling_params=params))
    longer_tag = b"\xdc\x00\x04\xd9\x06" + submit[2:]
    # The largest comes last: its time is charged, so that nothing is read for a while after it.
    asked = ask(submit, codec.encode(Abort(request_id="a")), submit_with_bomb(1_000_000))
    assert asked.answers == ["this engine does not accept control commands"] * 3
    assert asked.num_decoded == 0
    asked = ask(longer_tag)
    assert asked.answers == ["this engine does not accept control commands"]
    assert asked.num_decoded == len(longer_tag)


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize(
    "start", [b"\x93\xafSnapshotRequest\xa1x", b"\x93\xa1x", b"", b"\xdc\x00\x03\xd9\x06Submit"]
)
def test_large_requests_of_other_kinds_are_refused_undecoded(
    ask: Callable[..., Asked], start: bytes, control: bool
) -> None:
    asked = ask(start + many_lists(16_000), start + many_lists(1_000_000), control=control)
    assert len(asked.answers) == 2
    assert all("the request cannot be read: it has" in answer for answer in asked.answers)
    assert asked.num_decoded == 0


@pytest.mark.parametrize("count", [20_000, 1_000_000])
def test_a_command_of_too_many_elements_is_refused(ask: Callable[..., Asked], count: int) -> None:
    (answer,) = ask(submit_with_bomb(count), control=True).answers
    assert f"more than {parsing.MAX_COMMAND_ELEMENTS:,} elements" in answer


@pytest.mark.parametrize(("took", "charged"), [(0.05, 0.05), (7.0, 0.1)])
def test_the_time_that_a_request_took_is_charged_up_to_a_limit(
    took: float, charged: float, ask: Callable[..., Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = iter([0.0, took])
    clock = SimpleNamespace(monotonic=lambda: 100.0, thread_time=lambda: next(work))
    monkeypatch.setattr(request_handler, "time", clock)
    pause = charged / request_handler.MAX_READING_SHARE
    assert ask(b"\xc1").seconds_until_readable == pytest.approx(
        pause - request_handler.BURST_SECONDS
    )


def test_a_flood_of_bombs_stops_neither_the_stream_nor_other_viewers(endpoint: str) -> None:
    bombs = [
        b"\x93\xafSnapshotRequest\xa1x" + many_lists(1_000_000),
        submit_with_bomb(1_000_000),
        b"\x93\xafSnapshotRequest\xa1x" + many_lists(900),
        many_lists(16_000),
    ]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with (
        MessagePublisher(endpoint, engine_info(control=False), EngineState()) as engine,
        Session(endpoint) as session,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as flood,
    ):
        session.await_engine(SECONDS)
        flood.linger = 0
        flood.sndhwm = 4
        flood.connect(snapshot_endpoint(endpoint))
        for number in range(40):
            with suppress(zmq.Again):
                flood.send(bombs[number % len(bombs)], zmq.DONTWAIT)
            engine.publish(arrival(number))
        wait_until(lambda: "req-39" in session.state.requests)
        assert engine.num_dropped == 0
        with Session(endpoint) as late:
            late.await_engine(SECONDS)
            assert "req-39" in late.state.requests
    # Each bomb of a million elements would take 72 MB when decoded.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 2**10


def test_requests_of_many_parts_cost_their_time_and_no_memory(
    connected_sockets: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
) -> None:
    router, viewer = connected_sockets
    handler = RequestHandler(
        router, engine_info(), None, Queue(), encode_nothing, lambda: None, framed
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    viewer.send_multipart([b"x"] * 200_000 + [codec.encode(Abort(request_id="x"))])
    assert router.poll(MILLISECONDS)
    sent = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    handler.read()
    assert viewer.poll(MILLISECONDS)
    assert b"does not accept control" in viewer.recv_multipart()[-1]
    assert handler.seconds_until_readable() > 0.9 * 200_000 / request_handler.PARTS_PER_SECOND
    received = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # ZeroMQ itself takes 64 bytes for each part, twice here: the viewer is in this process.
    assert sent - before < 100 * 2**10
    assert received - sent < 10 * 2**10
