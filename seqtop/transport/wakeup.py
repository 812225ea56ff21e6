"""Ending a thread that waits for sockets: one more socket, to wake it by."""

import uuid
from typing import Any, TypeAlias

import zmq

Pair: TypeAlias = zmq.Socket[bytes]


def wake_pair(context: zmq.Context[Any]) -> tuple[Pair, Pair]:
    """Two connected sockets: one for a thread to poll, one for others to send to."""
    name = f"inproc://{uuid.uuid4().hex}"
    woken: Pair = context.socket(zmq.PAIR)
    woken.bind(name)
    wake: Pair = context.socket(zmq.PAIR)
    wake.connect(name)
    return woken, wake
