"""How many tokens a decode may get before the scheduler is asked again.

Each token beyond the first takes a slot that is not there yet: a lookahead slot. With them, the
worker goes on for several iterations (`multi_step.py`) or has a draft verified (`speculation.py`).
"""

from __future__ import annotations

import msgspec

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import asks_for_beams
from engine_stub.core.block_manager import BlockManager
from engine_stub.core.groups import unfinished
from engine_stub.step_record import ScheduledSequenceGroup
from seqtop.sequence import SequenceGroup


class LookaheadSlots:
    """Gives out lookahead slots.

    Args:
        config: With `num_scheduler_steps` or `speculative`, and everything filled in.
    """

    def __init__(self, config: EngineConfig, block_manager: BlockManager) -> None:
        self._config = config
        self._most_slots = config.num_scheduler_steps - 1
        if config.speculative is not None:
            self._most_slots = config.num_speculative_tokens
        self._block_manager = block_manager

    def extend(self, scheduled: list[ScheduledSequenceGroup]) -> list[ScheduledSequenceGroup]:
        """Let the groups of a step have more tokens than one, if all that the step does is decode.

        Nobody is preempted for it: there are as many slots as the free blocks have room for.
        """
        num_slots = self._most_slots
        if num_slots == 0:
            return scheduled
        if any(each.is_prompt for each in scheduled):
            num_slots = 0
        elif scheduled:
            num_tokens = sum(each.num_batched_tokens for each in scheduled)
            num_slots = min(num_slots, self._config.max_num_batched_tokens // num_tokens - 1)
        return [self._extended(each, num_slots) for each in scheduled]

    def _extended(
        self, scheduled: ScheduledSequenceGroup, num_slots: int
    ) -> ScheduledSequenceGroup:
        seq_group, manager = scheduled.seq_group, self._block_manager
        seqs = unfinished(seq_group)
        if num_slots:
            num_slots = min(num_slots, self._num_tokens_to_come(seq_group) - 1)
        while num_slots and manager.num_to_append(seqs, num_slots) > manager.num_available:
            num_slots -= 1
        seq_group.init_multi_step(1 + num_slots)
        if num_slots == 0:
            return scheduled
        # It has been given its slot for this step, so that nothing is left to copy.
        manager.append_slots(seqs, num_slots)
        return msgspec.structs.replace(
            scheduled, num_batched_tokens=1 + num_slots, num_lookahead_slots=num_slots
        )

    def _num_tokens_to_come(self, seq_group: SequenceGroup) -> int:
        """The most tokens that a decoding group may yet get without going back to the scheduler."""
        params = seq_group.sampling_params
        assert params is not None
        assert self._config.max_model_len is not None
        if asks_for_beams(params):
            return 1  # which beams go on is not the worker's to decide
        num_tokens = self._config.max_model_len - seq_group.first_seq.get_len()
        if params.max_tokens is not None:
            num_tokens = min(num_tokens, params.max_tokens - seq_group.first_seq.get_output_len())
        return num_tokens
