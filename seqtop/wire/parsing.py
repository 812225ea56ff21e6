"""Payloads of the three directions of the protocol, decoded to their unions.

Each function raises `WireError`, and nothing else, for bytes that are not one of its messages.
"""

from typing import Any, cast

from seqtop.wire.codec import decode
from seqtop.wire.messages import Command, Event, Reply


def event(payload: bytes) -> Event:
    """Decode a live message, from the engine to every viewer."""
    return cast(Event, decode(payload, cast(Any, Event)))


def command(payload: bytes) -> Command:
    """Decode a question or command, from a viewer to the engine."""
    return cast(Command, decode(payload, cast(Any, Command)))


def reply(payload: bytes | memoryview) -> Reply:
    """Decode the answer to a question or command."""
    return cast(Reply, decode(payload, cast(Any, Reply)))
