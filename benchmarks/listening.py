"""A subscriber to an engine's stream, for measurements of something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import zmq


@contextmanager
def subscribed(endpoint: str) -> Iterator[None]:
    """Subscribes to the stream without reading it; messages over the socket's limit are dropped."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.subscribe(b"")
        socket.connect(endpoint)
        socket.recv()  # the welcome message: from now on, every message arrives
        yield
