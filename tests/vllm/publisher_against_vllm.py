"""vLLM serves every request, whatever becomes of the publisher's process.

Run by `make test-vllm`, as `against_vllm.py`.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import zmq
from against_vllm import assert_ended_as_users_saw, serve, vllm
from serve import ABORTED_AFTER, NUM_REQUESTS, num_tokens

from seqtop.live.session import Session
from seqtop.transport.connection import ConnectionState
from seqtop.transport.endpoints import snapshot_endpoint
from tests.support.waiting import wait_until

HARM_AT_STEP = 20


@pytest.fixture
def directory() -> Iterator[Path]:
    with TemporaryDirectory(prefix="sq") as name:
        yield Path(name)


def publisher_of(endpoint: str) -> int:
    """The process id of the publisher at an endpoint that no other process names."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            arguments = path.read_bytes().decode(errors="replace").split("\0")
            if "seqtop.adapters.publisher_main" in arguments and endpoint in arguments:
                return int(path.parent.name)
    raise AssertionError("it has no process")


@contextmanager
def killed(pid: int, _: str) -> Iterator[None]:
    os.kill(pid, signal.SIGKILL)
    yield


@contextmanager
def stopped(pid: int, _: str) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        # Linux ends the stopped processes of a group that has no parent left.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def repeated(action: Callable[[], object]) -> Iterator[None]:
    """Repeats an action in a thread until the block ends."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.is_set():
            action()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def starved(pid: int, _: str) -> Iterator[None]:
    """Runs it for one of fifty milliseconds."""
    pause = threading.Event()

    def stop_and_go() -> None:
        for number, seconds in ((signal.SIGSTOP, 0.049), (signal.SIGCONT, 0.001)):
            with suppress(ProcessLookupError):  # it ends with vLLM
                os.kill(pid, number)
            pause.wait(seconds)

    with repeated(stop_and_go):
        yield


@contextmanager
def given_garbage(_: int, endpoint: str) -> Iterator[None]:
    """Sends it random bytes: as messages, as subscriptions, and without ZeroMQ."""
    chance = random.Random(5)
    context = zmq.Context()
    requests, subscriptions = context.socket(zmq.DEALER), context.socket(zmq.XSUB)
    requests.connect(snapshot_endpoint(endpoint))
    subscriptions.connect(endpoint)

    def send() -> None:
        frames = [chance.randbytes(chance.randrange(200)) for _ in range(chance.randrange(1, 4))]
        for attacked in (requests, subscriptions):
            with suppress(zmq.Again):
                attacked.send_multipart(frames, zmq.DONTWAIT)
        for path in (endpoint, snapshot_endpoint(endpoint)):
            with suppress(OSError), socket.socket(socket.AF_UNIX) as raw:
                raw.connect(path.removeprefix("ipc://"))
                raw.sendall(frames[0])

    try:
        with repeated(send):
            yield
    finally:
        context.destroy(linger=0)


@pytest.mark.parametrize("harm", [killed, stopped, starved, given_garbage])
def test_vllm_serves_every_request(harm: Any, directory: Path) -> None:
    endpoint = f"ipc://{directory}/e"
    with (
        vllm(directory, SEQTOP_BIND=endpoint, STEP_SECONDS="0.01") as process,
        Session(endpoint) as session,
    ):
        assert session.wait_for(ConnectionState.LIVE, timeout=60)
        pid = publisher_of(endpoint)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        wait_until(lambda: session.state.step >= HARM_AT_STEP)
        states: set[ConnectionState] = set()
        session.add_callback(lambda: states.add(session.connection.state))
        with harm(pid, endpoint):
            ended = serve(process, directory)
        if harm in (starved, given_garbage):  # all of it arrives, if late
            assert session.wait_for(ConnectionState.STOPPED, timeout=60), session.connection
            assert_ended_as_users_saw([session.state], ended)
        if harm is given_garbage:
            assert states == {ConnectionState.LIVE, ConnectionState.STOPPED}
            assert session.connection.num_missed == 0
    assert len(ended) == NUM_REQUESTS
    for number, end in enumerate(ended):
        if number in ABORTED_AFTER:
            assert end["reason"] == "abort"
        else:
            assert (end["reason"], len(end["tokens"])) == ("length", num_tokens(number))
