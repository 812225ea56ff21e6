"""Conflicts of IPC endpoints, keep-alive, and contexts that do not terminate."""

import contextlib
import errno
import os
import random
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq

from seqtop.live.session import Session
from seqtop.state import EngineState
from seqtop.transport import (
    sockets,
)
from seqtop.transport.endpoints import snapshot_endpoint
from seqtop.transport.publisher import MessagePublisher, PublishError
from tests.support.events import arrival, engine_info
from tests.support.waiting import SECONDS, wait_until

ESTABLISHED, KEEPALIVE_TIMER = "01", "02"  # of /proc/net/tcp


def termination_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "seqtop-termination"]


def test_context_that_does_not_terminate_is_left_behind(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_TERMINATION_TIMEOUT_SECONDS", 0.1)
    context = zmq.Context()
    unread = context.socket(zmq.PUSH)
    unread.connect(endpoint)
    unread.send(b"unread as yet, and to be delivered before the context ends")
    sockets.terminate(context, linger=-1)
    assert termination_threads()
    with zmq.Context() as other, other.socket(zmq.PULL) as reader:
        reader.bind(endpoint)
        reader.recv()
    wait_until(lambda: not termination_threads())


def test_ordinary_context_has_terminated_on_return() -> None:
    context = zmq.Context()
    context.socket(zmq.PUB)
    sockets.terminate(context)
    assert context.closed


def test_path_that_another_engine_uses_is_left_to_it(endpoint: str) -> None:
    with (
        MessagePublisher(endpoint, engine_info(), EngineState()) as first,
        Session(endpoint) as session,
    ):
        for taken in (endpoint, endpoint.removesuffix(".snapshot")):
            with pytest.raises(PublishError, match="already in use"):
                MessagePublisher(taken, engine_info(incarnation="two"), EngineState())
        session.await_engine(SECONDS)
        first.publish(arrival(1))
        wait_until(lambda: "req-1" in session.state.requests)


def test_path_that_another_engine_uses_for_requests_is_left_to_it(endpoint: str) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as other:
        other.bind(snapshot_endpoint(endpoint))
        with pytest.raises(PublishError, match=r"\.snapshot is already in use"):
            MessagePublisher(endpoint, engine_info(), EngineState())


def test_socket_that_a_crash_has_left_behind_is_no_obstacle(endpoint: str) -> None:
    path = endpoint.removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    assert Path(path).is_socket()
    with MessagePublisher(endpoint, engine_info(), EngineState()), Session(endpoint) as session:
        session.await_engine(SECONDS)


def test_a_socket_whose_backlog_is_full_is_in_use(endpoint: str) -> None:
    path = endpoint.removeprefix("ipc://")
    with contextlib.ExitStack() as sockets_in_use:
        listener, *clients = (
            sockets_in_use.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(9)
        )
        listener.bind(path)
        listener.listen(0)
        for client in clients:
            client.setblocking(False)
        assert errno.EAGAIN in [client.connect_ex(path) for client in clients]
        assert sockets.bind_conflict(endpoint) == "is already in use"


def test_file_in_the_place_of_a_socket_is_not_removed(endpoint: str) -> None:
    path = Path(endpoint.removeprefix("ipc://"))
    path.write_text("years of work")
    with pytest.raises(PublishError, match="is not a socket"):
        MessagePublisher(endpoint, engine_info(), EngineState())
    assert path.read_text() == "years of work"


def keepalive_timers(*ports: int) -> list[bool]:
    """Return for each end of each connection to these ports whether keep-alive runs on it."""
    has_timer = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:  # man 5 proc_net
        _, local, remote, state, _, timer, *_ = line.split()
        is_one = {int(end.split(":")[1], 16) for end in (local, remote)} & {*ports}
        if is_one and state == ESTABLISHED:
            has_timer.append(timer.startswith(KEEPALIVE_TIMER))
    return has_timer


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells the timers")
def test_both_ends_of_both_connections_are_kept_alive() -> None:
    engine = None
    while engine is None:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(PublishError):  # it is in use
            engine = MessagePublisher(f"tcp://127.0.0.1:{port}", engine_info(), EngineState())
    with engine, Session(f"tcp://127.0.0.1:{port}") as session:
        session.await_engine(SECONDS)
        wait_until(lambda: keepalive_timers(port, port + 1) == [True] * 4)


def as_nobody(action: Callable[[], object]) -> int:
    """The error number of an action of a user with no rights; 0 if it succeeds."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        action()
        os._exit(0)
    except OSError as error:
        os._exit(error.errno or 255)
    finally:
        os._exit(254)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_another_user_cannot_connect_to_an_ipc_endpoint(endpoint: str, mode: int) -> None:
    """With the usual umask a socket belongs to its user, even where others can see it."""
    directory = Path(endpoint.removeprefix("ipc://")).parent
    directory.chmod(mode)
    before = os.umask(0o022)
    try:
        with MessagePublisher(endpoint, engine_info(), EngineState()):
            for address in (endpoint, snapshot_endpoint(endpoint)):
                path = address.removeprefix("ipc://")
                assert not stat.S_IMODE(Path(path).stat().st_mode) & 0o022
                client = socket.socket(socket.AF_UNIX)
                assert as_nobody(lambda: client.connect(path)) == errno.EACCES  # noqa: B023
                client.connect(path)
                client.close()
    finally:
        os.umask(before)


def test_symbolic_link_in_the_place_of_a_socket_leads_nowhere(
    endpoint: str, tmp_path: Path
) -> None:
    link, file = Path(endpoint.removeprefix("ipc://")), tmp_path / "file"
    link.symlink_to(file)
    with MessagePublisher(endpoint, engine_info(), EngineState()), Session(endpoint) as session:
        session.await_engine(SECONDS)
        assert not file.exists()
    link.unlink(missing_ok=True)
    link.symlink_to(file)
    file.write_text("years of work")
    with pytest.raises(PublishError, match="is not a socket"):
        MessagePublisher(endpoint, engine_info(), EngineState())
    assert file.read_text() == "years of work"
