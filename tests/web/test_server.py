"""`seqtop serve`: the app in a real browser, and requests of other sites."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyte
import pytest

from tests.support.browsing import a_page
from tests.support.forked import start
from tests.support.waiting import SECONDS, wait_until

pytest.importorskip("textual_serve", reason="textual-serve is not installed")


@pytest.fixture(scope="module")
def url(recording: str) -> Iterator[str]:
    """The address of the app, which plays a recording."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "seqtop", "serve", "--port", str(port)]
    with start(
        [*command, "--", "replay", recording, "--speed", "0.1"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{port}" in process.stdout.readline()
        wait_until(lambda: status(f"http://127.0.0.1:{port}/") == 200)
        yield f"http://127.0.0.1:{port}/"
        process.terminate()
        assert process.wait(SECONDS) == 0


def status(url: str, **headers: str) -> int | None:
    try:
        with urlopen(Request(url, headers=headers), timeout=SECONDS) as answer:
            return answer.status
    except HTTPError as error:
        return error.code
    except OSError:
        return None


def await_text(page: Any, screen: pyte.Screen, *texts: str) -> None:
    """Waits until all texts are drawn, while the browser's messages are let through."""
    for _ in range(1_200):
        if all(any(text in line for line in screen.display) for text in texts):
            return
        page.wait_for_timeout(50)
    pytest.fail("\n".join((f"{texts} never came:", *map(str.rstrip, screen.display))))


@pytest.mark.release("needs a browser")
def test_the_app_is_drawn_with_nothing_from_elsewhere(url: str) -> None:
    screen = pyte.Screen(200, 60)
    stream = pyte.ByteStream(screen)
    with a_page() as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))

        def feed(data: str | bytes) -> None:
            if isinstance(data, bytes):
                stream.feed(data)

        def listen(websocket: Any) -> None:
            asked.append(websocket.url)
            websocket.on("framereceived", feed)

        page.on("websocket", listen)
        page.goto(url)
        page.wait_for_selector("body.-first-byte")
        # Text is drawn on a canvas: count its pixels, and read what it is sent.
        page.wait_for_function(
            """() => {
              const canvas = document.querySelector("canvas.xterm-text-layer");
              const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, 60).data;
              return new Set(new Uint32Array(pixels.buffer)).size > 20;
            }"""
        )
        await_text(page, screen, "random  none", "REPLAY")
        assert any("Request" in line and "Status" in line for line in screen.display)
        page.keyboard.press("?")  # without a click before
        await_text(page, screen, "Keys")
        assert page.evaluate("document.fonts.check('16px \"Roboto Mono\"')")
    name = url.removeprefix("http://")
    assert len(asked) >= 4
    assert all(address.startswith((url, f"ws://{name}", "data:")) for address in asked), asked


def test_other_sites_pages_are_turned_away(url: str) -> None:
    name = url.removeprefix("http://").rstrip("/")
    assert status(url, Origin="http://evil.example") == 403
    assert status(f"{url}ws", Origin="http://evil.example") == 403
    assert status(url, Host="evil.example") == 403, "a name that was bent to point here"
    for malformed in ("[localhost", "localhost]", "[::1"):
        assert status(url, Host=malformed) == 400
        assert status(url, Origin=f"http://{malformed}") == 400
    assert status(url, Origin=f"http://{name}") == 200
    assert status(url, Host=f"localhost:{name.rpartition(':')[2]}") == 200
