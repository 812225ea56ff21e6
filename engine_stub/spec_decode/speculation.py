"""Speculative decoding: guess the next tokens cheaply, and have the model look at all at once.

A `Proposer` guesses. The model computes a guess like a piece of prompt, so that one forward pass
says what it would have put in each place, and `RejectionSampler` decides how much of the guess
stands. What does not stand leaves nothing behind: its keys and values lie beyond the tokens that
count as computed, and are overwritten by those that come there instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from engine_stub.model_executor.stages import PipelineComm
from seqtop.sequence import SequenceGroupMetadata

GeneratorOf: TypeAlias = Callable[[SequenceGroupMetadata], torch.Generator]
"""The random numbers of a group: its own if it has a seed, else everybody's."""

_NOTHING = -1
"""Fills up what stages tell each other; no token's id."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that a sequence may go on with.

    Attributes:
        probs: ``[len(token_ids), vocab]``, the distributions they were drawn from; None if nothing
            else could have been proposed.
    """

    token_ids: list[int] = field(default_factory=list)
    probs: Tensor | None = None


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class SpeculationOutcome:
    """What a step made of a sequence that sampled.

    Attributes:
        group: Whose only sequence it is, as it was before the step.
        hidden: ``[1 + num_draft_tokens, hidden_size]``: the states after its last token and after
            each token of its draft.
        num_accepted: How many tokens of its draft stand; one more was sampled.
    """

    group: SequenceGroupMetadata
    hidden: Tensor
    num_accepted: int


class Proposer(Protocol):
    """Guesses how sequences go on."""

    def propose(
        self, groups: list[SequenceGroupMetadata], generator_of: GeneratorOf
    ) -> dict[int, Draft]:
        """Drafts by sequence id, of at most `num_speculative_tokens` tokens, for some of `groups`.

        Args:
            groups: Each of one sequence, which decodes.
            generator_of: For drafts that are drawn.
        """
        ...

    def observe(self, outcomes: list[SpeculationOutcome]) -> None:
        """Learn what became of all sequences that sampled in a step."""
        ...


class Speculator:
    """Has drafts made in the last stage, and makes them known in all.

    Args:
        proposer: None in the stages before the last.
        neighbours: None where there is one stage.
    """

    def __init__(self, proposer: Proposer | None, neighbours: PipelineComm | None) -> None:
        self.proposer = proposer
        self._neighbours = neighbours

    def propose(
        self, groups: list[SequenceGroupMetadata], generator_of: GeneratorOf
    ) -> dict[int, Draft]:
        """Drafts by sequence id, for those of `groups` that may speculate in this step."""
        asking = [group for group in groups if group.num_speculative_tokens]
        if not asking:
            return {}
        drafts = self.proposer.propose(asking, generator_of) if self.proposer else {}
        if self._neighbours is None:
            return drafts
        told: list[int] = []
        for group in asking:
            guess = drafts.get(group.get_first_seq_id(), NO_DRAFT).token_ids
            told += guess + [_NOTHING] * (_width(group) - len(guess))
        agreed = iter(self._neighbours.agree(told))
        heard = {
            group.get_first_seq_id(): [next(agreed) for _ in range(_width(group))]
            for group in asking
        }
        return drafts or {
            seq_id: Draft([token_id for token_id in token_ids if token_id != _NOTHING])
            for seq_id, token_ids in heard.items()
        }

    def observe(self, outcomes: list[SpeculationOutcome]) -> None:
        """Tell the proposer what became of a step."""
        if self.proposer:
            self.proposer.observe(outcomes)


def _width(group: SequenceGroupMetadata) -> int:
    assert group.num_speculative_tokens is not None
    return group.num_speculative_tokens
