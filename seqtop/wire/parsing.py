"""Decoders for the payloads of the protocol's three directions."""

from typing import Any, cast

from seqtop.wire.codec import decode
from seqtop.wire.element_count import MAX_STATE_ELEMENTS
from seqtop.wire.messages import Command, Event, Reply

MAX_COMMAND_ELEMENTS = 2**14
"""The limit for a command, which has at most a few lists of token ids."""


def event(payload: bytes) -> Event:
    """Decodes a message of the live stream.

    Raises:
        WireError: The payload is not an event.
    """
    return cast(Event, decode(payload, cast(Any, Event), name="Event"))


def command(payload: bytes) -> Command:
    """Decodes a request or command from a viewer.

    Raises:
        WireError: The payload is not a command.
    """
    return cast(Command, decode(payload, cast(Any, Command), max_elements=MAX_COMMAND_ELEMENTS))


def reply(payload: bytes | memoryview) -> Reply:
    """Decodes an engine's reply to a request or command.

    Raises:
        WireError: The payload is not a reply.
    """
    return cast(Reply, decode(payload, cast(Any, Reply), max_elements=MAX_STATE_ELEMENTS))
