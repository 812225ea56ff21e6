"""Somebody who listens to an engine while something else is measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import zmq

from seqtop.transport.publisher import Publisher


@contextmanager
def subscribed(publisher: Publisher) -> Iterator[None]:
    """A viewer hears the stream and does nothing about it; what is too much for the socket goes."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.subscribe(b"")
        socket.connect(publisher.endpoint)
        while not publisher.has_listeners:
            time.sleep(0.001)
        yield
