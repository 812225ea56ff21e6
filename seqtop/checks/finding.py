"""What a check finds: the rules by name, and a finding as views and reports read it."""

from __future__ import annotations

import msgspec

from seqtop.state import EngineState
from seqtop.state.model import SequenceState

RULES = {
    "block-shared": "two sequences hold a block whose tokens they do not have in common",
    "block-range": "a block table names a block that the pool does not have",
    "block-leak": "blocks are in use that no block table names, or the reverse",
    "pool-sum": "free, used and cached blocks do not add up to the pool",
    "cache-sum": "the cached blocks are not those that the prefix cache knows and no table names",
    "table-short": "a block table is too short for the computed tokens",
    "computed-beyond": "more tokens are computed than the sequence has",
    "computed-back": "computed tokens went back without a preemption",
    "transition": "a status followed another that it cannot follow",
    "late-token": "a sequence got tokens after its end",
    "unknown": "an event names something that nobody announced, or announced twice",
    "time-order": "times of a step or of a request are out of order",
    "queue-time": "time in queue is not first scheduled minus arrival",
    "budget": "a step computed more tokens, or ran more sequences, than its limits allow",
    "starvation": "a request waits on while later ones, no more urgent, are scheduled",
    "text-length": "the text deltas do not add up to the text",
    "swap-map": "a swap names a block that nobody holds there",
}
"""Every rule by its name, and what it finds."""


class Finding(msgspec.Struct):
    """One thing that is wrong: which rule says so, where, and what would be right."""

    rule: str
    message: str
    step: int
    request_id: str | None = None
    seq_id: int | None = None
    block: int | None = None


class Rules:
    """Some rules that look at the same things; each keeps to what an event changed.

    Args:
        state: The engine's, kept up by whoever asks the rules.
    """

    def __init__(self, state: EngineState) -> None:
        self.state = state

    def finding(
        self,
        rule: str,
        message: str,
        *,
        request_id: str | None = None,
        block: int | None = None,
    ) -> Finding:
        """What is wrong with the engine, a request or a block, as of the last step."""
        return Finding(rule, message, self.state.step, request_id, block=block)

    def of(
        self, sequence: SequenceState, rule: str, message: str, block: int | None = None
    ) -> Finding:
        """What is wrong with a sequence."""
        ids = sequence.request_id, sequence.seq_id
        return Finding(rule, message, self.state.step, *ids, block)
