"""Preempts the request that loses the fewest computed tokens.

The rule of https://github.com/vllm-project/vllm/pull/53723: what a preemption by recomputation
throws away are the computed tokens of its victim.
"""

from collections.abc import Callable, Sequence

from engine_stub.core.policy import SchedulingPolicy
from seqtop.sequence import SequenceGroup


class LeastComputedFirst(SchedulingPolicy):
    """Preempts the group behind with the fewest computed tokens, of equal ones the last."""

    def victim(
        self, behind: Sequence[SequenceGroup], num_blocks: Callable[[SequenceGroup], int]
    ) -> SequenceGroup:
        """Returns the group that is preempted."""
        return min(
            reversed(behind),
            key=lambda group: sum(seq.get_num_computed_tokens() for seq in group.seqs),
        )
