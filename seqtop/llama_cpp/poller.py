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

from seqtop.llama_cpp.adapter import LlamaAdapter
from seqtop.llama_cpp.client import Client
from seqtop.publish import Publisher
from seqtop.transport.connection import UnreachableError
from seqtop.transport.publisher_settings import PublisherSettings

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
    num_deferred, slots = client.num_deferred(), client.slots()
    adapter = LlamaAdapter(client.props(), slots, num_deferred, time.time())
    with TemporaryDirectory(prefix="seqtop-") as directory:
        endpoint = f"ipc://{Path(directory, 'llama')}"
        settings = PublisherSettings(bind=endpoint, engine_id=client.url, redact=True)
        # A step is what happened from one poll to the next.
        publisher = Publisher(adapter, settings, clock=lambda: adapter.time)
        with publisher.step():
            pass
        ended = threading.Event()
        thread = threading.Thread(
            target=_poll,
            args=(client, adapter, publisher, ended),
            name="seqtop-llama-cpp",
            daemon=True,
        )
        thread.start()
        try:
            yield endpoint
        finally:
            ended.set()
            thread.join(_JOIN_SECONDS)


def _poll(
    client: Client, adapter: LlamaAdapter, publisher: Publisher, ended: threading.Event
) -> None:
    """Polls until `ended` is set or the server answers no longer, and closes the publisher."""
    reason, last_answer = "polling has ended", time.monotonic()
    while not ended.wait(POLL_SECONDS):
        try:
            num_deferred, slots = client.num_deferred(), client.slots()
        except UnreachableError as error:
            if time.monotonic() - last_answer < PATIENCE_SECONDS:
                continue
            reason = str(error)
            break
        last_answer = time.monotonic()
        if adapter.is_news(slots, num_deferred):
            with publisher.step():
                adapter.take(slots, num_deferred, time.time())
    publisher.close(reason)
