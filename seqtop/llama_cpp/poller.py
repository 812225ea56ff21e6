"""The thread that polls llama.cpp's server, and publishes what it says on this machine."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from seqtop.llama_cpp.client import Client
from seqtop.llama_cpp.observer import Observer, engine_info
from seqtop.state import EngineState
from seqtop.transport.connection import UnreachableError
from seqtop.transport.publisher import MessagePublisher

POLL_SECONDS: Final = 0.1
"""The time between two polls. The server answers between two of its batches."""

PATIENCE_SECONDS: Final = 15.0
"""The time without an answer after which a server has ended. One whose HTTP threads all have a
request (`--threads-http`) answers when one of them is free."""

_JOIN_SECONDS: Final = 6.0
"""The longest time that a viewer who quits waits for an answer."""


@contextlib.contextmanager
def published(url: str) -> Iterator[str]:
    """Polls a server on a thread while the context lasts; returns the endpoint of its stream.

    The key that the server was started with is in the environment variable `LLAMA_API_KEY`.

    Args:
        url: The server's address.

    Raises:
        UnreachableError: The server does not answer, or not as llama.cpp's does.
    """
    client = Client(url, os.environ.get("LLAMA_API_KEY", ""))
    num_deferred, slots, now = client.num_deferred(), client.slots(), time.time()
    info, observer = engine_info(client.url, client.props(), slots, now), Observer()
    with TemporaryDirectory(prefix="seqtop-") as directory:
        publisher = MessagePublisher(f"ipc://{Path(directory, 'llama')}", info, EngineState())
        for event in observer.observe(slots, num_deferred, now, now):
            publisher.publish(event)
        ended = threading.Event()
        thread = threading.Thread(
            target=_poll,
            args=(client, observer, publisher, now, ended),
            name="seqtop-llama-cpp",
            daemon=True,
        )
        thread.start()
        try:
            yield publisher.endpoint
        finally:
            ended.set()
            thread.join(_JOIN_SECONDS)


def _poll(
    client: Client,
    observer: Observer,
    publisher: MessagePublisher,
    before: float,
    ended: threading.Event,
) -> None:
    """Polls until `ended` is set or the server answers no longer, and closes the publisher."""
    reason, last_answer = "polling has ended", time.monotonic()
    while not ended.wait(POLL_SECONDS):
        try:
            num_deferred, slots, now = client.num_deferred(), client.slots(), time.time()
        except UnreachableError as error:
            if time.monotonic() - last_answer < PATIENCE_SECONDS:
                continue
            reason = str(error)
            break
        for event in observer.observe(slots, num_deferred, before, now):
            publisher.publish(event)
        before, last_answer = now, time.monotonic()
    publisher.close(reason)
