"""Speculative decoding: drafts the next tokens cheaply, and verifies them in one forward pass.

A `Proposer` makes drafts. The model computes a draft like a chunk of a prompt, so that one forward
pass gives its prediction for each position, and `RejectionSampler` decides how many of the draft's
tokens are accepted. Rejected tokens leave no trace: their keys and values lie beyond the computed
tokens, and are overwritten by the tokens that come instead.
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
"""Returns the random numbers of a group: its own if it has a seed, else the shared ones."""

_PADDING = -1
"""Pads drafts to equal lengths when they are broadcast; not the id of any token."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed as the continuation of a sequence.

    Attributes:
        probs: ``[len(token_ids), vocab]``, the distributions that the tokens were drawn from; None
            if the proposer is deterministic.
    """

    token_ids: list[int] = field(default_factory=list)
    probs: Tensor | None = None


NO_DRAFT = Draft()


@dataclass(frozen=True, slots=True)
class SpeculationOutcome:
    """The result of verifying the draft of one sequence.

    Attributes:
        group: The group of the sequence, its only one, as it was before the step.
        hidden: ``[1 + num_draft_tokens, hidden_size]``, the states after the sequence's last token
            and after each token of the draft.
        num_accepted: The number of accepted tokens; one more was sampled.
    """

    group: SequenceGroupMetadata
    hidden: Tensor
    num_accepted: int


class Proposer(Protocol):
    """Makes drafts."""

    def propose(
        self, groups: list[SequenceGroupMetadata], generator_of: GeneratorOf
    ) -> dict[int, Draft]:
        """Returns drafts by sequence id, for some or all of `groups`.

        Args:
            groups: Groups of one decoding sequence each. Their `num_speculative_tokens` is the
                most tokens of a draft.
            generator_of: The random numbers for drafts that are drawn.
        """
        ...

    def observe(self, outcomes: list[SpeculationOutcome]) -> None:
        """Takes the outcomes of all sequences that sampled in a step."""
        ...


class Speculator:
    """Makes drafts in the last stage, and broadcasts them to all stages.

    Args:
        proposer: The source of drafts; None in all stages but the last.
        pipeline_comm: Communication with the other stages; None if there is one stage.
    """

    def __init__(self, proposer: Proposer | None, pipeline_comm: PipelineComm | None) -> None:
        self.proposer = proposer
        self._pipeline_comm = pipeline_comm

    def propose(
        self, groups: list[SequenceGroupMetadata], generator_of: GeneratorOf
    ) -> dict[int, Draft]:
        """Returns drafts by sequence id, for the `groups` that may speculate in this step."""
        speculating = [group for group in groups if group.num_speculative_tokens]
        if not speculating:
            return {}
        drafts = self.proposer.propose(speculating, generator_of) if self.proposer else {}
        if self._pipeline_comm is None:
            return drafts
        padded: list[int] = []
        for group in speculating:
            token_ids = drafts.get(group.get_first_seq_id(), NO_DRAFT).token_ids
            padded += token_ids + [_PADDING] * (_width(group) - len(token_ids))
        received = iter(self._pipeline_comm.broadcast_from_last(padded))
        received_drafts = {
            group.get_first_seq_id(): [next(received) for _ in range(_width(group))]
            for group in speculating
        }
        return drafts or {
            seq_id: Draft([token_id for token_id in token_ids if token_id != _PADDING])
            for seq_id, token_ids in received_drafts.items()
        }

    def observe(self, outcomes: list[SpeculationOutcome]) -> None:
        """Passes the outcomes of a step to the proposer."""
        if self.proposer:
            self.proposer.observe(outcomes)


def _width(group: SequenceGroupMetadata) -> int:
    assert group.num_speculative_tokens is not None
    return group.num_speculative_tokens
