"""How often an engine lets itself be asked for a snapshot, by a clock that the test moves."""

from collections.abc import Iterator
from queue import Queue
from types import SimpleNamespace

import pytest
import zmq

from seqtop.transport import request_handler
from seqtop.transport.request_handler import RequestHandler
from seqtop.wire import codec
from seqtop.wire.messages import PROTOCOL_VERSION, SnapshotRequest
from tests.support.hand_driven import engine_info
from tests.support.waiting import MILLISECONDS


@pytest.fixture
def door() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """The engine's socket, and a viewer's that is connected to it."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind("inproc://questions")
        with context.socket(zmq.DEALER) as viewer:
            viewer.connect("inproc://questions")
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
    door: tuple[zmq.Socket[bytes], zmq.Socket[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    elapsed: float,
    worked: float,
    next_after: float,
) -> None:
    router, viewer = door
    now, work = [100.0], [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: work[0])
    monkeypatch.setattr(request_handler, "time", clock)

    def encode() -> Iterator[list[bytes]]:
        now[0] += elapsed
        work[0] += worked
        yield [b"a snapshot"]

    desk = RequestHandler(router, engine_info(), None, Queue(), encode)
    question = codec.encode(SnapshotRequest(protocol_version=PROTOCOL_VERSION))

    def ask() -> None:
        viewer.send(question)
        assert router.poll(MILLISECONDS)
        desk.read()

    ask()
    assert desk.seconds_to_snapshot() == 0
    desk.serve()
    assert viewer.poll(MILLISECONDS)
    desk.has_moved_on()
    ask()
    assert desk.seconds_to_snapshot() == pytest.approx(next_after)
