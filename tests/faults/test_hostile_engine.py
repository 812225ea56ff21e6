"""An engine that says too much, and the memory and output of those who listen to it."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import zmq

from seqtop.live.session import Session
from seqtop.sequence.names import MAX_NAME_LENGTH
from seqtop.state import EngineState
from seqtop.state.snapshot import take
from seqtop.transport.connection import ConnectionState
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire import codec, frames
from seqtop.wire.messages import Heartbeat
from tests.support.events import arrival, engine_info
from tests.support.waiting import SECONDS, wait_until

LONG = 60 * 2**20


class Shown(NamedTuple):
    lines: list[str]
    peak: int
    """The most memory that the program took, in bytes."""


_SHOW = """
import re, sys
from pathlib import Path
from seqtop.cli.main import main
status = main(["show", "--timeout", "60", sys.argv[1]])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(status)
"""


def show(endpoint: str) -> Shown:
    command = [sys.executable, "-c", _SHOW, endpoint]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
    return Shown(done.stdout.splitlines(), int(done.stderr) * 2**10)


@pytest.fixture(scope="module")
def plain_peak(tmp_path_factory: pytest.TempPathFactory) -> int:
    endpoint = f"ipc://{tmp_path_factory.mktemp('plain')}/e"
    with MessagePublisher(endpoint, engine_info(), EngineState()) as publisher:
        publisher.publish(arrival(1))
        return show(endpoint).peak


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's figures")
@pytest.mark.parametrize(("letter", "megabytes"), [("x", 16), ("\x1b", 16), ("狐", 80)])
def test_a_text_takes_twice_its_bytes(
    endpoint: str, plain_peak: int, letter: str, megabytes: int
) -> None:
    """The text, and the history's copy before it is compressed; Python caches others than ASCII."""
    event = msgspec.structs.replace(arrival(1), prompt=letter * (LONG // len(letter.encode())))
    num_bytes = len(codec.encode(event))
    with MessagePublisher(endpoint, engine_info(), EngineState()) as publisher:
        publisher.publish(event)
        shown = show(endpoint)
    assert max(map(len, shown.lines)) < 5_000
    assert shown.peak - plain_peak < 2 * num_bytes + megabytes * 2**20


@pytest.mark.parametrize(
    ("field", "letter"), [("request_id", "x"), ("lora", "狐"), ("engine_status", "\x1b")]
)
def test_names_of_ten_megabytes_are_refused_by_name(endpoint: str, field: str, letter: str) -> None:
    name = letter * (10 * 2**20 // len(letter.encode()))
    event = msgspec.structs.replace(arrival(1), **{field: name})
    with (
        MessagePublisher(endpoint, engine_info(), EngineState()) as publisher,
        Session(endpoint) as session,
    ):
        assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
        publisher.publish(event)
        wait_until(lambda: session.connection.num_errors == 1)
        reason = f"{field}: Expected `str` of length <= {MAX_NAME_LENGTH}"
        assert session.connection.last_error.endswith(reason)
        publisher.publish(arrival(2))
        wait_until(lambda: session.state.requests)
        assert [*session.state.requests] == [arrival(2).request_id]
        assert session.connection.num_errors == 1
        # The publisher's thread sends an event before it reads it, and the engine's asks later.
        wait_until(lambda: publisher.needs_snapshot() or publisher.last_error)
        assert publisher.last_error.endswith(reason)


def test_messages_of_many_frames_are_counted_and_the_stream_goes_on(endpoint: str) -> None:
    """A publisher by hand, since ours sends no such message."""
    snapshot = codec.encode(take(EngineState()))
    with zmq.Context() as context:
        live, router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        live.bind(endpoint)
        router.bind(snapshot_endpoint(endpoint))
        with Session(endpoint) as session:
            assert live.poll(int(SECONDS * 1_000))
            live.send_multipart([frames.topic("one")])
            assert router.poll(int(SECONDS * 1_000))
            identity, _ = router.recv_multipart()
            router.send_multipart([identity, *frames.pack("one", 1, snapshot)])
            assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)
            for _ in range(3):
                live.send_multipart([frames.topic("one")] + [b""] * 100_000)
            live.send_multipart(frames.pack("one", 1, codec.encode(Heartbeat(time=5.0, step=3))))
            wait_until(lambda: session.sequence_number == 1)
            assert session.connection.num_errors == 3
            assert "got 100001 frames" in session.connection.last_error
        live.close(linger=0)
        router.close(linger=0)
