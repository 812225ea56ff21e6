"""The result of a step, as all workers return it; nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from seqtop.sequence import CompletionSequenceGroupOutput, PoolerOutput


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """The result of a step.

    Attributes:
        outputs: One output per group, in the order of the request. It has no samples if the group
            did not sample, and several of one sequence, in order, after several iterations or an
            accepted draft.
        model_forward_time: Duration of the forward pass, in seconds.
        pooler_output: One entry per group, with data where a prompt has been pooled; None if no
            group pools.
        num_draft_tokens: For each group, the number of draft tokens verified; None without
            speculation.
        errors: By the index of a group, the reason why it could not be sampled for or pooled.
    """

    outputs: list[CompletionSequenceGroupOutput]
    model_forward_time: float
    pooler_output: PoolerOutput | None = None
    num_draft_tokens: list[int] | None = None
    errors: dict[int, str] = field(default_factory=dict)
