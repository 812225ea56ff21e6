"""The addresses of the server, and clients that it keeps out."""

import socket
import subprocess

import httpx
import pytest

from tests.support.http_engine import ENGINE, Served, post_by_hand
from tests.support.waiting import SECONDS


def refusal(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([*ENGINE, *arguments], capture_output=True, text=True, timeout=SECONDS)
    (sentence,) = done.stderr.strip().splitlines()
    return done.returncode, sentence


def test_a_client_that_does_not_finish_its_request(served: Served) -> None:
    post_by_hand(served, b'{"prompt"', 99).close()
    # Nothing may have been written to standard error: the fixture looks at its end.
    assert httpx.get(f"{served.url}/health").status_code == 200


def test_pages_of_other_origins_are_kept_out(served: Served) -> None:
    url = f"{served.url}/v1/completions"
    assert httpx.post(url, content='{"prompt": "x"}').status_code == 415
    assert httpx.post(url, json={"prompt": "x"}, headers={"host": "a.page"}).status_code == 400


@pytest.mark.parametrize(
    ("address", "words"), [("0.0.0.0:8000", "--insecure"), ("8000", "is not of the form HOST:PORT")]
)
def test_addresses_that_are_refused(address: str, words: str) -> None:
    status, sentence = refusal("--http", address)
    assert status == 2
    assert words in sentence


def test_address_in_use(endpoint: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        status, sentence = refusal("--bind", endpoint, "--http", address)
    assert status == 1
    assert address in sentence
    assert "in use" in sentence
