"""Clients that hold connections, or send bodies in a way that costs much."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import h11
import pytest

from engine_stub.entrypoints.openai import connections, http_server
from engine_stub.entrypoints.openai.app import ServedModel
from engine_stub.entrypoints.openai.connections import LimitedConnection
from engine_stub.entrypoints.openai.http_server import HttpServer, max_connections
from tests.support.waiting import SECONDS

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
BODY = b'{"prompt": [5]}'
POST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
)
MAX_CONNECTIONS = 8


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """The address of a server whose engine does not answer."""
    monkeypatch.setattr(http_server, "_MAX_CONNECTIONS", MAX_CONNECTIONS)
    with socket.create_server(("127.0.0.1", 0)) as free:
        host, port = free.getsockname()
    engine: Any = SimpleNamespace(tokenizer=None)
    model = ServedModel("tiny", 100, None, (), 0)
    with HttpServer(f"{host}:{port}", engine, model):
        yield host, port


def connect(address: tuple[str, int], data: bytes = b"") -> socket.socket:
    client = socket.create_connection(address, timeout=SECONDS)
    client.sendall(data)
    return client


def response(client: socket.socket) -> bytes:
    """Returns all that the server sends until it closes the connection."""
    received = b""
    try:
        while part := client.recv(65_536):
            received += part
    except ConnectionResetError:
        pass
    return received


@pytest.mark.parametrize("sent", [b"", POST[:20]])
def test_a_connection_without_a_request_is_closed(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "MAX_HEAD_SECONDS", 0.1)
    with connect(address, sent) as client:
        assert response(client) == b""


@pytest.mark.parametrize("sent", [b"", POST[:20], POST + BODY[:-1]])
def test_clients_that_are_waited_for_make_room(address: tuple[str, int], sent: bytes) -> None:
    waiting = [connect(address, sent) for _ in range(3 * MAX_CONNECTIONS)]
    with connect(address, HEALTH) as client:
        assert response(client).startswith(b"HTTP/1.1 200 ")
    assert response(waiting[0]) == b""  # the one for which the server has waited longest
    for client in waiting:
        client.close()


def test_requests_that_are_served_keep_their_connections(address: tuple[str, int]) -> None:
    served = []
    for _ in range(MAX_CONNECTIONS - 1):
        client = connect(address, POST.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
        assert client.recv(65_536).startswith(b"HTTP/1.1 100 ")
        client.sendall(BODY)
        served.append(client)
    for _ in range(2):
        with connect(address, HEALTH) as client:
            assert response(client).startswith(b"HTTP/1.1 503 ")
    for client in served:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        client.close()


CHUNKED = POST.partition(b"Content-Length")[0] + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("pieces", "is_refused"),
    [
        ([b"1\r\n \r\n" * 4_000, b"0\r\n\r\n"], False),
        ([b"1\r\n \r\n" * 5_000], True),
        ([b"1;%b\r\n \r\n" % (b"x" * 60_000)] * 10, False),
        ([b"1;%b\r\n \r\n" % (b"x" * 60_000)] * 40, True),
    ],
)
def test_a_body_has_a_limited_number_of_pieces_and_bytes(
    pieces: list[bytes], is_refused: bool
) -> None:
    connection = LimitedConnection()
    refusals = []
    for data in [CHUNKED, *pieces]:
        connection.receive_data(data)
        try:
            while connection.next_event() is not h11.NEED_DATA:
                pass
        except h11.RemoteProtocolError as error:
            refusals.append(str(error))
    assert bool(refusals) == is_refused


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(64, 64, 21), (1_024, 4_096, 512), (256, resource.RLIM_INFINITY, 512), (1, 1, 1)],
)
def test_connections_leave_descriptors_to_others(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: int
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: limits.append(pair))
    assert max_connections() == expected
