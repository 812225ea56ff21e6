"""Descriptions of scheduled groups for the worker: in full at first, then as deltas."""

from __future__ import annotations

from engine_stub.core.block_manager import BlockManager
from engine_stub.core.waiting_queue import unfinished_seqs
from engine_stub.step_record import ScheduledSequenceGroup
from seqtop.sequence import (
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceGroupMetadataLike,
    SequenceGroupState,
)


class MetadataBuilder:
    """Builds the descriptions, and records the sequences that the worker has received."""

    def __init__(self, block_manager: BlockManager) -> None:
        self._block_manager = block_manager
        # By request id, the sequences that the worker has a copy of.
        self._sent_seq_ids: dict[str, list[int]] = {}

    def build(self, scheduled: ScheduledSequenceGroup) -> SequenceGroupMetadataLike:
        """Returns the description of a group and its blocks for a step.

        It is complete for a new group, and after a fork or the removal of a beam; else a delta. It
        shares no mutable data with the group.
        """
        if not scheduled.is_prompt and scheduled.seq_group.is_single_seq:
            delta = self._decode_delta(scheduled)
            if delta is not None:
                return delta
        manager = self._block_manager
        seq_group, seqs = scheduled.seq_group, unfinished_seqs(scheduled.seq_group)
        block_tables = {seq.seq_id: manager.get_block_table(seq) for seq in seqs}
        computed_block_nums = manager.get_computed_block_nums(seqs)
        do_sample = scheduled.token_chunk_size == seqs[0].data.get_num_uncomputed_tokens()
        state = SequenceGroupState(seq_group.state.num_steps, seq_group.state.current_step)
        deltas = {seq.seq_id: seq.data.get_delta_and_reset() for seq in seqs}
        if self._sent_seq_ids.get(seq_group.request_id) == list(deltas):
            return SequenceGroupMetadataDelta(
                seq_data_delta=deltas,
                request_id=seq_group.request_id,
                block_tables=block_tables,
                is_prompt=scheduled.is_prompt,
                do_sample=do_sample,
                token_chunk_size=scheduled.token_chunk_size,
                computed_block_nums=computed_block_nums,
                state=state,
            )
        self._sent_seq_ids[seq_group.request_id] = list(deltas)
        return SequenceGroupMetadata(
            request_id=seq_group.request_id,
            is_prompt=scheduled.is_prompt,
            seq_data={seq.seq_id: seq.data.snapshot() for seq in seqs},
            sampling_params=seq_group.sampling_params,
            pooling_params=seq_group.pooling_params,
            block_tables=block_tables,
            do_sample=do_sample,
            computed_block_nums=computed_block_nums,
            state=state,
            token_chunk_size=scheduled.token_chunk_size,
        )

    def _decode_delta(self, scheduled: ScheduledSequenceGroup) -> SequenceGroupMetadataDelta | None:
        """Returns the delta of a group that decodes a single sequence, in a third of the time.

        That is what most groups do in most steps. None if the worker does not have the sequence.
        """
        seq_group = scheduled.seq_group
        seq, state = seq_group.first_seq, seq_group.state
        seq_id, request_id = seq.seq_id, seq_group.request_id
        if self._sent_seq_ids.get(request_id) != [seq_id]:
            return None
        table = self._block_manager.table_of(seq_id)
        return SequenceGroupMetadataDelta(  # by position, which takes half the time
            {seq_id: seq.data.get_delta_and_reset()},
            request_id,
            {seq_id: table.blocks},
            False,
            True,
            scheduled.token_chunk_size,
            table.cached_blocks if self._block_manager.enable_prefix_caching else None,
            SequenceGroupState(state.num_steps, state.current_step),
        )

    def remove(self, request_id: str) -> None:
        """Makes the next description of a group a complete one, if there is another."""
        self._sent_seq_ids.pop(request_id, None)
