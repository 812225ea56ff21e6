"""The columns of a step's decodes, read a sequence at a time, for those who look at one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import msgspec

from seqtop.wire.messages import Decodes, Step


class Decode(msgspec.Struct, frozen=True):
    """What the columns say of one sequence."""

    seq_id: int
    new_token_id: int
    text_delta: str
    new_logprob: float | None
    """`None` where the engine has none."""
    new_block: int | None
    """The block appended to its table, if there was one."""


def decodes(step: Step) -> Iterator[Decode]:
    """The sequences that a step tells of in columns, in their order."""
    return iter(()) if step.decodes is None else _rows(step.decodes)


def decode_of(step: Step, seq_id: int) -> Decode | None:
    """What the columns of a step say of one sequence, if it is in them."""
    return next((each for each in decodes(step) if each.seq_id == seq_id), None)


def num_decodes(step: Step) -> int:
    """How many sequences a step tells of in columns."""
    return 0 if step.decodes is None else len(step.decodes.seq_ids)


def _rows(columns: Decodes) -> Iterator[Decode]:
    logprobs = columns.new_logprobs or repeat(None)
    rows = zip(
        columns.seq_ids, columns.new_token_ids, columns.text_deltas, logprobs, strict=False
    )  # fmt: skip
    for seq_id, token_id, delta, logprob in rows:
        yield Decode(seq_id, token_id, delta, logprob, columns.new_blocks.get(seq_id))
