"""A web server that receives JSON, as one that is told of alerts."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Server(http.server.ThreadingHTTPServer):
    """A web server that keeps what it receives, and answers once it may."""

    def __init__(self, status: int = 200) -> None:
        self.received: list[tuple[str, dict[str, Any]]] = []
        self.may_answer = threading.Event()
        self.status = status
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/alerts?token=1"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, json.loads(body)))
        self.server.may_answer.wait()
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""


@contextmanager
def serving(*, answers: bool = True, status: int = 200) -> Iterator[Server]:
    with Server(status) as server:
        if answers:
            server.may_answer.set()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.may_answer.set()
        server.shutdown()
        thread.join()
