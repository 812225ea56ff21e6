"""Descriptions of scheduled groups for the worker: in full at first, then as deltas."""

from __future__ import annotations

import msgspec

from engine_stub.core.block_manager import BlockManager
from engine_stub.core.waiting_queue import unfinished_seqs
from engine_stub.step_record import ScheduledSequenceGroup
from seqtop.sequence import (
    SequenceData,
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
            seq_data={seq.seq_id: snapshot(seq.data) for seq in seqs},
            sampling_params=seq_group.sampling_params,
            pooling_params=seq_group.pooling_params,
            block_tables=block_tables,
            do_sample=do_sample,
            computed_block_nums=computed_block_nums,
            state=state,
            token_chunk_size=scheduled.token_chunk_size,
        )

    def remove(self, request_id: str) -> None:
        """Makes the next description of a group a complete one, if there is another."""
        self._sent_seq_ids.pop(request_id, None)


def snapshot(data: SequenceData) -> SequenceData:
    """Returns a copy of `data`; both share only the prompt, which never changes."""
    return msgspec.structs.replace(
        data, _output_token_ids=data.output_token_ids_array[:], _new_appended_tokens=[]
    )
