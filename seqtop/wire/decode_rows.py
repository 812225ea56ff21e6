"""Reads the columns of `Step.decodes` one sequence at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import msgspec

from seqtop.wire.messages import Decodes, Step


class Decode(msgspec.Struct, frozen=True):
    """The elements of one sequence in the columns."""

    seq_id: int
    new_token_id: int
    text_delta: str
    new_logprob: float | None
    """`None` if the engine has no log-probabilities."""
    new_block: int | None
    """The block appended to its table, if any."""


def decodes(step: Step) -> Iterator[Decode]:
    """Yields the sequences in the columns of a step, in order."""
    return iter(()) if step.decodes is None else _rows(step.decodes)


def decode_of(step: Step, seq_id: int) -> Decode | None:
    """Returns the elements of one sequence, or `None` if it is not in the columns."""
    return next((each for each in decodes(step) if each.seq_id == seq_id), None)


def num_decodes(step: Step) -> int:
    """Returns the number of sequences in the columns of a step."""
    return 0 if step.decodes is None else len(step.decodes.seq_ids)


def _rows(columns: Decodes) -> Iterator[Decode]:
    logprobs = columns.new_logprobs or repeat(None)
    rows = zip(
        columns.seq_ids, columns.new_token_ids, columns.text_deltas, logprobs, strict=False
    )  # fmt: skip
    for seq_id, token_id, delta, logprob in rows:
        yield Decode(seq_id, token_id, delta, logprob, columns.new_blocks.get(seq_id))
