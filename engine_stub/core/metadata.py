"""What the worker is told of a scheduled group: everything when it starts, then what changes."""

from __future__ import annotations

import msgspec

from engine_stub.core.block_manager import BlockManager
from engine_stub.core.groups import unfinished
from engine_stub.step_record import ScheduledSequenceGroup
from seqtop.sequence import (
    SequenceData,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceGroupMetadataLike,
    SequenceGroupState,
)


class MetadataBuilder:
    """Describes groups to the worker, and remembers what the worker knows of them."""

    def __init__(self, block_manager: BlockManager) -> None:
        self._block_manager = block_manager
        self._sent_seq_ids: dict[str, list[int]] = {}
        """By request id, the sequences that the worker knows."""

    def build(self, scheduled: ScheduledSequenceGroup) -> SequenceGroupMetadataLike:
        """Describe a group with its blocks for the step: in full at first, then by its changes.

        Forks and dropped beams are told by another full. What is sent shares nothing with the
        group that will change.
        """
        manager = self._block_manager
        seq_group, seqs = scheduled.seq_group, unfinished(scheduled.seq_group)
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

    def forget(self, request_id: str) -> None:
        """Describe a group in full the next time, if ever."""
        self._sent_seq_ids.pop(request_id, None)


def snapshot(data: SequenceData) -> SequenceData:
    """A copy of `data` that shares nothing with it but the prompt, which never changes."""
    return msgspec.structs.replace(
        data, _output_token_ids=data.output_token_ids_array[:], _new_appended_tokens=[]
    )
