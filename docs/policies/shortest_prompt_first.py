"""Serves the requests with the shortest prompts first, and no request for ever last.

The rule of https://github.com/vllm-project/vllm/pull/29366 in its simplest form: each second of
waiting counts as much as some tokens less. As all requests wait at the same rate, their order does
not change while they wait, and the arrival time can be added once.
"""

from engine_stub.core.policy import SchedulingPolicy
from seqtop.sequence import SequenceGroup

TOKENS_PER_SECOND = 100.0
"""The tokens of a prompt that a second of waiting makes up for."""


class ShortestPromptFirst(SchedulingPolicy):
    """Ranks groups by priority, then by the length of the prompt and the time of the arrival."""

    def rank(self, seq_group: SequenceGroup) -> tuple[float, ...]:
        """Returns the sort key of a group that arrives."""
        num_tokens = len(seq_group.first_seq.prompt_token_ids)
        return (seq_group.priority, num_tokens + TOKENS_PER_SECOND * seq_group.arrival_time)
