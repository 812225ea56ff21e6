"""Which sequence groups run in the next step, on which blocks, for how many tokens.

Two queues in one order, by priority and then by arrival: RUNNING groups own blocks, WAITING ones
own none. A step's token budget goes to running decodes (one token each), then to prefills under
way, then to the head of the waiting queue; a prefill takes what is left of the budget and goes on
in the next step. When a decode finds no block, the last running group is preempted: it gives up
its blocks and waits again, to be recomputed. So the first running group always moves on, and every
group gets its turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from sortedcontainers import SortedKeyList

from engine_stub.block_manager import BlockManager
from engine_stub.config import EngineConfig
from engine_stub.step_record import HeadWait, Preemption, ScheduledSequenceGroup
from seqtop.sequence import (
    ExecuteModelRequest,
    SequenceData,
    SequenceGroup,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceGroupMetadataLike,
    SequenceStatus,
)

# Blocks that an admission leaves for the running groups to grow into, as a share of the pool.
_WATERMARK = 0.01


def _queue_order(seq_group: SequenceGroup) -> tuple[int, int]:
    # Sequence ids count up, so they tell the order of arrival.
    return seq_group.priority, seq_group.first_seq.seq_id


@dataclass(frozen=True, slots=True)
class SchedulerOutputs:
    """A step as planned; the fields are those of `StepRecord`."""

    execute_model_req: ExecuteModelRequest
    scheduled: list[ScheduledSequenceGroup]
    preemptions: list[Preemption]
    head_wait: HeadWait | None
    num_prefill_tokens: int
    num_decode_tokens: int


class Scheduler:
    """Plans steps. Each group holds one sequence: samples of ``n > 1`` are groups of their own.

    Args:
        config: With `max_num_seqs`, `max_num_batched_tokens` and `enable_chunked_prefill`.
        block_manager: Of a pool that holds the longest sequence the engine accepts.
    """

    def __init__(self, config: EngineConfig, block_manager: BlockManager) -> None:
        self.config = config
        self.block_manager = block_manager
        self.waiting = SortedKeyList(key=_queue_order)
        self.running = SortedKeyList(key=_queue_order)
        self._watermark = int(_WATERMARK * block_manager.num_blocks)
        self._finished_requests_ids: list[str] = []

    def add_seq_group(self, seq_group: SequenceGroup) -> None:
        """Put a new group into the waiting queue."""
        self.waiting.add(seq_group)

    def finish_seq_group(self, seq_group: SequenceGroup) -> None:
        """Drop a group whose sequence is finished, from whichever queue, and free its blocks."""
        self.running.discard(seq_group)
        self.waiting.discard(seq_group)
        self.block_manager.free(seq_group.first_seq)
        self._finished_requests_ids.append(seq_group.request_id)

    def has_work(self) -> bool:
        """Whether groups are to be run or the worker has to be told of finished ones."""
        return bool(self.running or self.waiting or self._finished_requests_ids)

    def schedule(self) -> SchedulerOutputs:
        """Plan the next step and allocate its blocks.

        Nothing is planned only if there is no group at all.
        """
        budget = self.config.max_num_batched_tokens
        decodes, preemptions = self._schedule_decodes()
        prefills = self._schedule_prefills(budget - len(decodes))
        num_prefill_tokens = sum(each.num_batched_tokens for each in prefills)
        budget -= len(decodes) + num_prefill_tokens
        admitted, head_wait = self._schedule_waiting(budget, may_admit=not preemptions)
        num_prefill_tokens += sum(each.num_batched_tokens for each in admitted)

        scheduled = prefills + admitted + decodes
        finished_requests_ids, self._finished_requests_ids = self._finished_requests_ids, []
        execute_model_req = ExecuteModelRequest(
            seq_group_metadata_list=[self._metadata(each) for each in scheduled],
            running_queue_size=len(self.running),
            finished_requests_ids=finished_requests_ids,
        )
        return SchedulerOutputs(
            execute_model_req=execute_model_req,
            scheduled=scheduled,
            preemptions=preemptions,
            head_wait=head_wait,
            num_prefill_tokens=num_prefill_tokens,
            num_decode_tokens=len(decodes),
        )

    def _schedule_decodes(self) -> tuple[list[ScheduledSequenceGroup], list[Preemption]]:
        """Give each decoding group, in order, the slot it needs, if need be another's block."""
        decodes: list[ScheduledSequenceGroup] = []
        preemptions: list[Preemption] = []
        for seq_group in [each for each in self.running if not each.is_prefill()]:
            seq = seq_group.first_seq
            # A group preempted by one before it no longer runs.
            while seq.status is SequenceStatus.RUNNING:
                if self.block_manager.can_append_slot(seq):
                    self.block_manager.append_slot(seq)
                    decodes.append(ScheduledSequenceGroup(seq_group, 1, 1, is_prompt=False))
                    break
                # Of lowest rank, so not scheduled yet; it may be the very group in need.
                preemptions.append(self._preempt(self.running[-1], seq_group))
        return decodes, preemptions

    def _schedule_prefills(self, budget: int) -> list[ScheduledSequenceGroup]:
        """Continue prefills under way; they have their blocks already."""
        prefills: list[ScheduledSequenceGroup] = []
        for seq_group in self.running:
            if budget == 0:
                break
            if seq_group.is_prefill():
                chunk = min(seq_group.first_seq.get_num_new_tokens(), budget)
                budget -= chunk
                prefills.append(ScheduledSequenceGroup(seq_group, chunk, chunk, is_prompt=True))
        return prefills

    def _schedule_waiting(
        self, budget: int, *, may_admit: bool
    ) -> tuple[list[ScheduledSequenceGroup], HeadWait | None]:
        """Admit groups from the head of the waiting queue until one cannot be.

        Args:
            may_admit: False in a step that preempted: what was freed is for those who run.
        """
        admitted: list[ScheduledSequenceGroup] = []
        while self.waiting:
            seq_group = self.waiting[0]
            request_id, seq = seq_group.request_id, seq_group.first_seq
            if len(self.running) >= self.config.max_num_seqs:
                return admitted, HeadWait(request_id, "seq_limit", 0)
            placement = self.block_manager.place(seq)
            num_cached = len(placement.hits) * self.block_manager.block_size
            num_new = seq.get_len() - num_cached
            num_least = 1 if self.config.enable_chunked_prefill else num_new
            if num_least > budget:
                return admitted, HeadWait(request_id, "token_budget", num_least - budget)
            reserve = self._watermark if self.running else 0
            num_missing = self.block_manager.num_missing(placement, reserve)
            if num_missing or not may_admit:
                return admitted, HeadWait(request_id, "no_blocks", num_missing)

            self.block_manager.allocate(seq, placement)
            seq.data.update_num_cached_tokens(num_cached)
            seq.status = SequenceStatus.RUNNING
            self.waiting.pop(0)
            self.running.add(seq_group)
            chunk = min(num_new, budget)
            budget -= chunk
            admitted.append(
                ScheduledSequenceGroup(seq_group, num_cached + chunk, chunk, is_prompt=True)
            )
        return admitted, None

    def _preempt(self, victim: SequenceGroup, beneficiary: SequenceGroup) -> Preemption:
        """Send a running group back to the waiting queue, without blocks."""
        seq = victim.first_seq
        preemption = Preemption(
            request_id=victim.request_id,
            mode="recompute",
            seq_ids=[seq.seq_id],
            num_lost_tokens=seq.get_num_computed_tokens(),
            for_request_id=beneficiary.request_id,
        )
        self.block_manager.free(seq)
        seq.reset_state_for_recompute()
        seq.status = SequenceStatus.WAITING
        self.running.remove(victim)
        self.waiting.add(victim)
        return preemption

    def _metadata(self, scheduled: ScheduledSequenceGroup) -> SequenceGroupMetadataLike:
        """Describe a scheduled group to the worker: in full when it starts, then by its changes.

        What is sent shares nothing mutable with the group.
        """
        seq_group = scheduled.seq_group
        seq = seq_group.first_seq
        data = seq.data
        block_tables = {seq.seq_id: self.block_manager.get_block_table(seq)}
        computed_block_nums = self.block_manager.get_computed_block_nums(seq)
        do_sample = scheduled.token_chunk_size == data.get_num_uncomputed_tokens()
        if data.get_num_computed_tokens() > 0:
            return SequenceGroupMetadataDelta(
                seq_data_delta={seq.seq_id: data.get_delta_and_reset()},
                request_id=seq_group.request_id,
                block_tables=block_tables,
                is_prompt=scheduled.is_prompt,
                do_sample=do_sample,
                token_chunk_size=scheduled.token_chunk_size,
                computed_block_nums=computed_block_nums,
                state=msgspec.structs.replace(seq_group.state),
            )
        return SequenceGroupMetadata(
            request_id=seq_group.request_id,
            is_prompt=scheduled.is_prompt,
            seq_data={seq.seq_id: snapshot(data)},
            sampling_params=seq_group.sampling_params,
            block_tables=block_tables,
            do_sample=do_sample,
            computed_block_nums=computed_block_nums,
            state=msgspec.structs.replace(seq_group.state),
            token_chunk_size=scheduled.token_chunk_size,
        )


def snapshot(data: SequenceData) -> SequenceData:
    """A copy of `data` that shares nothing with it but the prompt, which never changes."""
    return msgspec.structs.replace(
        data, _output_token_ids=data.output_token_ids_array[:], _new_appended_tokens=[]
    )
