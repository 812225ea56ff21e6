"""Decoders for the payloads of the protocol's three directions, and readers of a part of one."""

from typing import Any, Final, cast, get_args

import msgspec

from seqtop.wire import codec
from seqtop.wire.element_count import MAX_STATE_ELEMENTS
from seqtop.wire.errors import WireError
from seqtop.wire.message_tag import tag
from seqtop.wire.messages import Command, Event, Message, StepStats
from seqtop.wire.snapshot import Reply

MAX_COMMAND_ELEMENTS = 2**14
"""The limit for a command, which has at most a few lists of token ids."""

_EVENT_NAMES: Final = frozenset(str(event.__struct_config__.tag) for event in get_args(Event))


class UnknownEventError(WireError):
    """An event of a name that this version of seqtop does not know."""


class UpdateOutline(Message, gc=False):
    """The first fields of a `SequenceUpdate`."""

    seq_id: int
    new_token_ids: list[int] = msgspec.field(default_factory=list)


class StepOutline(Message, tag="Step"):
    """A `Step` whose large fields stay encoded."""

    step: int
    start_time: float
    time: float
    execute: msgspec.Raw
    sequences: list[UpdateOutline]
    stats: StepStats
    metrics: msgspec.Raw = msgspec.Raw()
    preemptions: list[msgspec.Raw] = msgspec.field(default_factory=list)

    @property
    def num_generated_tokens(self) -> int:
        """The number of tokens that the step sampled."""
        return sum([len(update.new_token_ids) for update in self.sequences])


def event(payload: bytes) -> Event:
    """Decodes a message of the live stream.

    Raises:
        UnknownEventError: The payload is an event of a newer engine.
        WireError: The payload is not an event.
    """
    try:
        return cast(Event, codec.decode(payload, cast(Any, Event), name="Event"))
    except WireError as error:
        name = tag(payload)
        if name and name not in _EVENT_NAMES:
            raise UnknownEventError(f"an event of the unknown name {name!r}") from error
        raise


def command(payload: bytes) -> Command:
    """Decodes a request or command from a viewer.

    Raises:
        WireError: The payload is not a command.
    """
    return cast(
        Command, codec.decode(payload, cast(Any, Command), max_elements=MAX_COMMAND_ELEMENTS)
    )


def reply(payload: bytes | memoryview) -> Reply:
    """Decodes an engine's reply to a request or command.

    Raises:
        WireError: The payload is not a reply.
    """
    return cast(Reply, codec.decode(payload, cast(Any, Reply), max_elements=MAX_STATE_ELEMENTS))


def step_outline(payload: bytes) -> StepOutline | None:
    """Decodes the figures of a step without the rest; `None` for any other event.

    A chart of a long recording reads each of its steps. Skipping all else makes that several times
    faster than decoding the events.

    Raises:
        WireError: The payload begins like a step, but it is none.
    """
    return codec.decode(payload, StepOutline) if tag(payload) == "Step" else None
