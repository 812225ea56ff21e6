"""The figures of an encoded step, decoded without its sequences.

A chart of a long recording reads each of its steps. Skipping the sequences makes that many times
faster than decoding the events.
"""

import msgspec

from seqtop.wire import codec
from seqtop.wire.messages import Message, StepStats

_TAG = b"\xa4Step"
_TAG_END = 8
"""The tag begins after an array header of one, three or five bytes."""


class StepOutline(Message, tag="Step"):
    """A `Step` whose large fields stay encoded."""

    step: int
    start_time: float
    time: float
    execute: msgspec.Raw
    sequences: msgspec.Raw
    stats: StepStats
    metrics: msgspec.Raw = msgspec.Raw()
    preemptions: list[msgspec.Raw] = msgspec.field(default_factory=list)


def step_outline(payload: bytes) -> StepOutline | None:
    """Decodes the figures of a step; `None` for any other event.

    Raises:
        WireError: The payload begins like a step, but it is none.
    """
    if _TAG not in payload[: _TAG_END + len(_TAG)]:
        return None
    return codec.decode(payload, StepOutline)
