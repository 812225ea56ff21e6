"""A subscriber to an engine's stream, for measurements of something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from seqtop.transport.publisher import MessagePublisher


@contextmanager
def subscribed(publisher: MessagePublisher) -> Iterator[None]:
    """Subscribes to the stream without reading it; messages over the socket's limit are dropped."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.subscribe(b"")
        socket.connect(publisher.endpoint)
        socket.recv()  # the welcome message: from now on, every message arrives
        yield
