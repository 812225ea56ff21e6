"""Lookahead slots: KV slots for more than one token per decode and step.

With them, the worker runs several iterations without the scheduler (`multi_step.py`), or verifies
a draft (`speculation.py`).
"""

from __future__ import annotations

import msgspec

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import is_beam_search
from engine_stub.core.block_manager import BlockManager
from engine_stub.core.waiting_queue import unfinished_seqs
from engine_stub.step_record import ScheduledSequenceGroup
from seqtop.sequence import SequenceGroup


class LookaheadSlots:
    """Allocates lookahead slots.

    Args:
        config: The engine's settings, all of them resolved.
        block_manager: The manager of the blocks that contain the slots.
    """

    def __init__(self, config: EngineConfig, block_manager: BlockManager) -> None:
        self._config = config
        self._most_slots = config.num_draft_tokens or config.num_scheduler_steps - 1
        self._block_manager = block_manager

    @property
    def is_on(self) -> bool:
        """True if the settings ask for lookahead slots."""
        return self._most_slots > 0

    def extend(self, scheduled: list[ScheduledSequenceGroup]) -> list[ScheduledSequenceGroup]:
        """Allocates lookahead slots for the groups of a step, if all of them decode.

        No group is preempted for it: there are as many slots as the free blocks have room for.

        Returns:
            The groups with their numbers of slots.
        """
        num_slots = self._most_slots
        if num_slots == 0:
            return scheduled
        if any(group.is_prompt for group in scheduled):
            num_slots = 0
        elif scheduled:
            num_tokens = sum(group.num_batched_tokens for group in scheduled)
            num_slots = min(num_slots, self._config.max_num_batched_tokens // num_tokens - 1)
        return [self._extended(group, num_slots) for group in scheduled]

    def _extended(
        self, scheduled: ScheduledSequenceGroup, num_slots: int
    ) -> ScheduledSequenceGroup:
        seq_group, manager = scheduled.seq_group, self._block_manager
        seqs = unfinished_seqs(seq_group)
        if num_slots:
            num_slots = min(num_slots, self._num_tokens_to_come(seq_group) - 1)
        while num_slots and manager.num_blocks_to_append(seqs, num_slots) > manager.num_available:
            num_slots -= 1
        seq_group.init_multi_step(1 + num_slots)
        if num_slots == 0:
            return scheduled
        # The slot of this step is allocated already, so that no block is left to copy.
        manager.append_slots(seqs, num_slots)
        return msgspec.structs.replace(
            scheduled, num_batched_tokens=1 + num_slots, num_lookahead_slots=num_slots
        )

    def _num_tokens_to_come(self, seq_group: SequenceGroup) -> int:
        """Returns the most tokens that a group may still get, 1 if each needs the scheduler."""
        params = seq_group.sampling_params
        assert params is not None
        assert self._config.max_model_len is not None
        if is_beam_search(params):
            return 1  # the engine chooses the beams after each token
        num_tokens = self._config.max_model_len - seq_group.first_seq.get_len()
        if params.max_tokens is not None:
            num_tokens = min(num_tokens, params.max_tokens - seq_group.first_seq.get_output_len())
        return num_tokens
