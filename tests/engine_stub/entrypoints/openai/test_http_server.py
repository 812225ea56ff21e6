"""The addresses of the server, and clients that it keeps out."""

import contextlib
import json
import re
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from tests.support.http_engine import ENGINE, GREEDY, HTTP, Served, post_by_hand
from tests.support.waiting import SECONDS, wait_until


def refusal(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([*ENGINE, *arguments], capture_output=True, text=True, timeout=SECONDS)
    (sentence,) = done.stderr.strip().splitlines()
    return done.returncode, sentence


def test_a_client_that_does_not_finish_its_request(served: Served) -> None:
    post_by_hand(served, b'{"prompt"', 99).close()
    # Nothing may have been written to standard error: the fixture looks at its end.
    assert HTTP.get(f"{served.url}/health").status_code == 200


def test_pages_of_other_origins_are_kept_out(served: Served) -> None:
    url = f"{served.url}/v1/completions"
    assert HTTP.post(url, content='{"prompt": "x"}').status_code == 415
    assert HTTP.post(url, json={"prompt": "x"}, headers={"host": "a.page"}).status_code == 400


@pytest.mark.parametrize(
    ("address", "words"), [("0.0.0.0:8000", "--insecure"), ("8000", "is not of the form HOST:PORT")]
)
def test_addresses_that_are_refused(address: str, words: str) -> None:
    status, sentence = refusal("--http", address)
    assert status == 2
    assert words in sentence


@pytest.mark.release("another start of an engine")
def test_it_listens_before_the_engine_can_be_seen() -> None:
    """Of two addresses in use, that of the API is tried first."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        status, sentence = refusal("--bind", f"tcp://{address}", "--http", address)
    assert status == 1
    assert f"--http {address}" in sentence
    assert "in use" in sentence


BODY = b'{"prompt": "x", "max_tokens": 1, "temperature": 0}'
START = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
IN_CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
UNREAD = START.replace(b"application/json", b"text/plain") + LENGTH + b"\r\n" + BODY[:-1]
SECOND = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def connect(served: Served) -> socket.socket:
    url = httpx.URL(served.url)
    return socket.create_connection((url.host, url.port), timeout=SECONDS)


def responses(served: Served, data: bytes) -> list[bytes]:
    """The status of each response until the server closes the connection."""
    with connect(served) as client, contextlib.suppress(ConnectionError):
        received = b""
        client.sendall(data)
        while part := client.recv(65_536):
            received += part
    return [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]]


REQUESTS = {
    "a length": (START + LENGTH + b"\r\n" + BODY + SECOND, [b"200", b"200"]),
    "chunks": (START + CHUNKED + b"\r\n" + IN_CHUNKS + SECOND, [b"200", b"200"]),
    # The chunks count, and the connection then ends: nothing is read in doubt.
    "both": (START + LENGTH + CHUNKED + b"\r\n" + IN_CHUNKS + SECOND, [b"200"]),
    "many chunks": (START + CHUNKED + b"\r\n" + b"1\r\n \r\n" * 5_000, [b"400"]),
    "an unread body": (UNREAD, [b"415"]),
    "an unread body of no route": (UNREAD.replace(b"/v1/", b"/v9/"), [b"404"]),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9, [b"400", b"400"]),
    "two lengths": (START + b"Content-Length: 4\r\n" + LENGTH + b"\r\n" + BODY, [b"400"]),
    "a list": (START + b"Content-Length: 4, 5\r\n\r\n" + BODY, [b"400"]),
    "a negative length": (START + b"Content-Length: -1\r\n\r\n" + BODY, [b"400"]),
    "30 digits": (START + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n" + BODY, [b"400"]),
    "gzip": (START + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + IN_CHUNKS, [b"400"]),
    "no chunk": (START + CHUNKED + b"\r\n" + b"zz\r\n", [b"400"]),
    "an extension": (START + CHUNKED + b"\r\n" + b"5;" + b"x" * 200_000, [b"400"]),
    "folded": (START + LENGTH + b"X:\r\n  y\r\n\r\n" + BODY + SECOND, [b"200", b"200"]),
    "a space": (START + LENGTH + b"X : y\r\n\r\n" + BODY, [b"400"]),
    "a long header": (START + b"X: " + b"x" * 200_000, [b"400"]),
    # Asks to close: the server otherwise keeps the connection open for five seconds.
    "a version": (b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n", [b"400"]),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", [b"400"]),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", [b"400"]),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_is_read_in_one_way_or_refused(served: Served, kind: str) -> None:
    data, statuses = REQUESTS[kind]
    assert responses(served, data) == statuses


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_a_gigabyte_is_not_read(served: Served, chunked: bool) -> None:
    process = psutil.Process(served.process.pid)
    before, sent = process.memory_info().rss, 0
    length = b"Transfer-Encoding: chunked\r\n" if chunked else b"Content-Length: 1073741824\r\n"
    part = b"x" * 65_536
    with connect(served) as client, contextlib.suppress(ConnectionError):
        client.sendall(START + length + b"\r\n")
        while sent < 2**30:
            client.sendall(b"10000\r\n" + part + b"\r\n" if chunked else part)
            sent += len(part)
    assert sent < 2**26  # what fits into the buffers of both ends, and not more
    assert process.memory_info().rss - before < 2**25
    assert HTTP.get(f"{served.url}/health").status_code == 200


def test_a_storm_of_refused_requests_leaves_no_memory_behind(served: Served) -> None:
    process = psutil.Process(served.process.pid)
    text, conversation = "never " * 150_000, [{"role": "user", "content": "never " * 150_000}]
    bodies = [
        ("completions", {"prompt": text}),
        ("completions", {"prompt": [5] * 300_000}),
        ("completions", {"prompt": ["x"] * 200_000}),
        ("completions", {"prompt": "x", "model": text}),
        ("chat/completions", {"messages": conversation}),
        ("embeddings", {"input": text}),
    ]
    contents = [(path, json.dumps(body).encode()) for path, body in bodies]
    headers = {"content-type": "application/json"}

    def post(number: int) -> int:
        path, content = contents[number % len(contents)]
        return HTTP.post(f"{served.url}/v1/{path}", content=content, headers=headers).status_code

    with ThreadPoolExecutor(max_workers=16) as clients:
        assert {*clients.map(post, range(24))} == {400, 404}
        before = process.memory_info().rss
        assert {*clients.map(post, range(120))} == {400, 404}
    assert process.memory_info().rss - before < 2**26


def test_connections_that_say_little_hinder_nobody(served: Served) -> None:
    sent = START + LENGTH + b"\r\n" + BODY
    slow = [connect(served) for _ in range(600)]
    for number, client in enumerate(slow):
        with contextlib.suppress(ConnectionError):  # those of 512 and more are closed
            client.sendall(sent[: number % len(sent)])
    assert HTTP.get(f"{served.url}/health").status_code == 200
    for client in slow:
        client.close()


@pytest.mark.parametrize(
    ("sent", "shown"),
    [("client-7", r"cmpl-client-7-[0-9a-f]{8}"), ("no id", r"cmpl-\d+"), ("x" * 101, r"cmpl-\d+")],
)
def test_the_id_that_a_client_sends_is_in_that_of_the_request(
    served: Served, sent: str, shown: str
) -> None:
    response = served.client.completions.create(
        **GREEDY | {"max_tokens": 1}, prompt="x", extra_headers={"X-Request-Id": sent}
    )
    assert re.fullmatch(shown, response.id)
    wait_until(lambda: served.request(response.id))
