"""Decoders for the payloads of the protocol's three directions."""

from typing import Any, cast

from seqtop.wire.codec import decode
from seqtop.wire.messages import Command, Event, Reply


def event(payload: bytes) -> Event:
    """Decodes a message of the live stream.

    Raises:
        WireError: The payload is not an event.
    """
    return cast(Event, decode(payload, cast(Any, Event)))


def command(payload: bytes) -> Command:
    """Decodes a request or command from a viewer.

    Raises:
        WireError: The payload is not a command.
    """
    return cast(Command, decode(payload, cast(Any, Command)))


def reply(payload: bytes | memoryview) -> Reply:
    """Decodes an engine's reply to a request or command.

    Raises:
        WireError: The payload is not a reply.
    """
    return cast(Reply, decode(payload, cast(Any, Reply)))
