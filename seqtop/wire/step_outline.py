"""The figures of an encoded step, decoded without the rest.

A chart of a long recording reads each of its steps. Skipping all else makes that several times
faster than decoding the events.
"""

import msgspec

from seqtop.wire import codec
from seqtop.wire.messages import Decodes, Message, StepStats

_TAG = b"\xa4Step"
_TAG_END = 8
"""The tag begins after an array header of one, three or five bytes."""


class UpdateOutline(Message, gc=False):
    """The first fields of a `SequenceUpdate`."""

    seq_id: int
    status: int
    num_computed_tokens: int
    num_cached_tokens: int = 0
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
    wait_reasons: msgspec.Raw = msgspec.Raw()
    newly_cached_blocks: msgspec.Raw = msgspec.Raw()
    uncached_blocks: msgspec.Raw = msgspec.Raw()
    decodes: Decodes | None = None

    @property
    def num_generated_tokens(self) -> int:
        """The number of tokens that the step sampled."""
        num_decodes = len(self.decodes.seq_ids) if self.decodes else 0
        return sum([len(update.new_token_ids) for update in self.sequences]) + num_decodes


def step_outline(payload: bytes) -> StepOutline | None:
    """Decodes the figures of a step; `None` for any other event.

    Raises:
        WireError: The payload begins like a step, but it is none.
    """
    if _TAG not in payload[: _TAG_END + len(_TAG)]:
        return None
    return codec.decode(payload, StepOutline)
