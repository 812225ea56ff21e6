"""Preempts a request that gives many blocks, loses few tokens, and is far from its end.

The score of https://github.com/vllm-project/vllm/pull/56897: blocks divided by tokens, times the
part of the output that is still to come.
"""

from collections.abc import Callable, Sequence

from engine_stub.core.policy import SchedulingPolicy
from seqtop.sequence import SequenceGroup


class CostAwareVictim(SchedulingPolicy):
    """Preempts the group behind with the highest score, of equal ones the last."""

    def victim(
        self, behind: Sequence[SequenceGroup], num_blocks: Callable[[SequenceGroup], int]
    ) -> SequenceGroup:
        """Returns the group that is preempted."""

        def score(group: SequenceGroup) -> float:
            seq, params = group.first_seq, group.sampling_params
            longest = (params.max_tokens if params is not None else None) or 1
            to_come = 1 - min(seq.get_output_len() / longest, 1.0)
            return num_blocks(group) / max(seq.get_len(), 1) * to_come

        return max(reversed(behind), key=score)
