"""Schedules steps: the sequence groups that run, their blocks, and their numbers of tokens.

There are three queues in one order, by priority and then by arrival: RUNNING groups own blocks on
the device, SWAPPED ones in host memory, WAITING ones own none. A step's token budget goes to
running decodes (one token per sequence), then to prefills in progress, then to the first waiting or
swapped groups; a prefill takes what is left of the budget and continues in the next step. If a
decode needs a block and none is available, a running group behind it is preempted: it loses its
blocks and waits again, to be recomputed or swapped in. The first running group therefore always
advances, and no group starves.

A step that only decodes may allocate lookahead slots for more than one token per sequence, as far
as budget and free blocks allow, so that the worker can continue without the scheduler.

A group may hold several sequences, the beams of a search. The unfinished ones have equal lengths,
run together, and wait together.

The order of the queues and the choice of the group that is preempted are those of a
`SchedulingPolicy`, which a file of one's own can change.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sortedcontainers import SortedKeyList

from engine_stub.config import EngineConfig
from engine_stub.core.beam_search import max_num_running_seqs
from engine_stub.core.block_manager import BlockManager
from engine_stub.core.lookahead_slots import LookaheadSlots
from engine_stub.core.metadata import MetadataBuilder
from engine_stub.core.policy import SchedulingPolicy, load_policy
from engine_stub.core.waiting_queue import WaitingQueue, unfinished_seqs
from engine_stub.step_record import AdmissionBlocked, PreemptionRecord, ScheduledSequenceGroup
from seqtop.sequence import (
    ExecuteModelRequest,
    Sequence,
    SequenceGroup,
    SequenceStage,
    SequenceStatus,
)
from seqtop.wire.messages import PreemptionMode

# Global names: looking up a member of an enum class takes longer than the comparison.
_RUNNING = SequenceStatus.RUNNING
_PREFILL = SequenceStage.PREFILL

# The share of the pool that admissions leave free, for the running groups to grow into.
_WATERMARK = 0.01


@dataclass(frozen=True, slots=True)
class SchedulerOutputs:
    """A scheduled step; the fields are those of `StepRecord`."""

    execute_model_req: ExecuteModelRequest
    scheduled: list[ScheduledSequenceGroup]
    preemptions: list[PreemptionRecord]
    admission_blocked: AdmissionBlocked | None
    num_prefill_tokens: int
    num_decode_tokens: int


@dataclass(slots=True)
class _BlockMoves:
    """Pairs of blocks that the worker copies before a step, in this order."""

    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    copy: list[tuple[int, int]] = field(default_factory=list)


class Scheduler:
    """Schedules steps, and preempts groups when blocks run out.

    Attributes:
        waiting: Groups without blocks.
        running: Groups with blocks on the device.
        swapped: Groups with blocks in host memory.

    Args:
        config: The engine's settings, all of them resolved.
        block_manager: The manager of a pool that can hold any group that the engine accepts, with
            all its sequences at their longest.
    """

    def __init__(self, config: EngineConfig, block_manager: BlockManager) -> None:
        self.config = config
        self.block_manager = block_manager
        self._lookahead = LookaheadSlots(config, block_manager)
        self._metadata = MetadataBuilder(block_manager)
        self.waiting = WaitingQueue(self._rank)
        self.running = SortedKeyList(key=self._rank)
        self.swapped = WaitingQueue(self._rank)
        self._watermark = int(_WATERMARK * block_manager.device.num_blocks)
        make_policy = SchedulingPolicy
        if config.scheduling_policy is not None:
            make_policy = load_policy(config.scheduling_policy)
        self._policy = make_policy(config)
        self._ranks: dict[str, tuple[float, ...]] = {}
        self._num_arrived = 0
        self._finished_requests_ids: list[str] = []
        self._moves = _BlockMoves()

    def add_seq_group(self, seq_group: SequenceGroup) -> None:
        """Adds a new group to the waiting queue."""
        self._ranks[seq_group.request_id] = *self._policy.rank(seq_group), self._num_arrived
        self._num_arrived += 1
        self.waiting.add(seq_group)

    def fork_seq(self, parent: Sequence, child: Sequence) -> None:
        """Makes a sequence that was forked from a running one share its blocks."""
        self.block_manager.fork(parent, child)

    def free_seq(self, seq: Sequence) -> None:
        """Frees the blocks of a sequence that leaves its group."""
        self.block_manager.free(seq)

    def finish_seq_group(self, seq_group: SequenceGroup) -> None:
        """Removes a group whose sequences are finished from its queue, and frees its blocks."""
        for queue in (self.running, self.waiting, self.swapped):
            queue.discard(seq_group)
        for seq in seq_group.seqs:
            self.block_manager.free(seq)
        del self._ranks[seq_group.request_id]
        self._metadata.remove(seq_group.request_id)
        self._finished_requests_ids.append(seq_group.request_id)

    def abort_seq_group(self, seq_group: SequenceGroup) -> None:
        """Ends an unfinished group in any state, and frees its blocks."""
        for seq in unfinished_seqs(seq_group):
            seq.status = SequenceStatus.FINISHED_ABORTED
        self.finish_seq_group(seq_group)

    @property
    def has_lookahead(self) -> bool:
        """True if steps may compute more than one token of a decode."""
        return self._lookahead.is_on

    @property
    def num_running_seqs(self) -> int:
        """Unfinished sequences of all running groups."""
        return sum(
            [1 if group.is_single_seq else len(unfinished_seqs(group)) for group in self.running]
        )

    def has_work(self) -> bool:
        """Tells whether there are groups to run, or finished ones to report to the worker."""
        return bool(self.running or self.waiting or self.swapped or self._finished_requests_ids)

    def schedule(self) -> SchedulerOutputs:
        """Schedules the next step and allocates its blocks.

        A step is empty only if there is no group at all.
        """
        self.block_manager.begin_step()
        budget = self.config.max_num_batched_tokens
        decoding, prefilling = self._running_by_stage()
        decodes, preemptions = self._schedule_decodes(decoding)
        budget -= _num_tokens(decodes)
        prefills = self._schedule_prefills(prefilling, budget)
        budget -= _num_tokens(prefills)
        admitted, admission_blocked = self._schedule_waiting(budget, may_admit=not preemptions)

        scheduled = self._lookahead.extend(prefills + admitted + decodes)
        # Decodes are many, and none of them is looked at.
        num_prefill_tokens = _num_tokens([own for own in prefills + admitted if own.is_prompt])
        num_lookahead_slots = 0
        if self.has_lookahead:
            num_lookahead_slots = max((group.num_lookahead_slots for group in scheduled), default=0)
        finished_requests_ids, self._finished_requests_ids = self._finished_requests_ids, []
        moves, self._moves = self._moves, _BlockMoves()
        execute_model_req = ExecuteModelRequest(
            seq_group_metadata_list=[self._metadata.build(group) for group in scheduled],
            blocks_to_swap_in=moves.swap_in,
            blocks_to_swap_out=moves.swap_out,
            blocks_to_copy=moves.copy,
            running_queue_size=len(self.running),
            num_lookahead_slots=num_lookahead_slots,
            # A draft is verified in one forward pass.
            num_steps=1 if self.config.speculative else 1 + num_lookahead_slots,
            finished_requests_ids=finished_requests_ids,
        )
        return SchedulerOutputs(
            execute_model_req=execute_model_req,
            scheduled=scheduled,
            preemptions=preemptions,
            admission_blocked=admission_blocked,
            num_prefill_tokens=num_prefill_tokens,
            num_decode_tokens=_num_tokens(scheduled) - num_prefill_tokens,
        )

    def _running_by_stage(self) -> tuple[list[SequenceGroup], list[SequenceGroup]]:
        """Returns the running groups that decode, and those in prefill, each in order."""
        decoding: list[SequenceGroup] = []
        prefilling: list[SequenceGroup] = []
        for seq_group in self.running:
            is_prefill = seq_group.first_seq.data.stage is _PREFILL
            (prefilling if is_prefill else decoding).append(seq_group)
        return decoding, prefilling

    def _schedule_decodes(
        self, seq_groups: list[SequenceGroup]
    ) -> tuple[list[ScheduledSequenceGroup], list[PreemptionRecord]]:
        """Allocates the slots of each group, in order, and preempts others if blocks run out."""
        manager = self.block_manager
        decodes: list[ScheduledSequenceGroup] = []
        preemptions: list[PreemptionRecord] = []
        for seq_group in seq_groups:
            # A group preempted by one before it no longer runs.
            while seq_group.first_seq.status is _RUNNING:
                seqs = unfinished_seqs(seq_group)
                have_slots = manager.have_slots(seqs)
                if have_slots or manager.num_blocks_to_append(seqs) <= manager.num_available:
                    if not have_slots:
                        self._moves.copy += manager.append_slots(seqs)
                    decodes.append(ScheduledSequenceGroup(seq_group, 1, len(seqs), False))
                    break
                preemptions.append(self._preempt(self._victim(seq_group), seq_group))
        return decodes, preemptions

    def _schedule_prefills(
        self, seq_groups: list[SequenceGroup], budget: int
    ) -> list[ScheduledSequenceGroup]:
        """Continues prefills in progress, unless preempted; they have all their blocks already."""
        prefills: list[ScheduledSequenceGroup] = []
        for seq_group in seq_groups:
            if seq_group.first_seq.status is SequenceStatus.RUNNING:
                num_seqs = len(unfinished_seqs(seq_group))
                chunk = min(seq_group.first_seq.get_num_new_tokens(), budget // num_seqs)
                if chunk == 0:
                    break
                num_tokens = chunk * num_seqs
                budget -= num_tokens
                prefills.append(
                    ScheduledSequenceGroup(seq_group, chunk, num_tokens, is_prompt=True)
                )
        return prefills

    def _schedule_waiting(
        self, budget: int, *, may_admit: bool
    ) -> tuple[list[ScheduledSequenceGroup], AdmissionBlocked | None]:
        """Admits waiting and swapped groups, in order, up to the first that is blocked.

        Args:
            may_admit: False in a step that preempted: the freed blocks are for running groups.
        """
        admitted: list[ScheduledSequenceGroup] = []
        if not (self.waiting or self.swapped):
            return admitted, None
        num_free_seq_slots = self.config.max_num_seqs - sum(map(max_num_running_seqs, self.running))
        while queues := [queue for queue in (self.waiting, self.swapped) if queue]:
            queue = min(queues, key=lambda queue: self._rank(queue.head))
            seq_group = queue.head
            request_id = seq_group.request_id
            num_free_seq_slots -= max_num_running_seqs(seq_group)
            if num_free_seq_slots < 0:
                return admitted, AdmissionBlocked(request_id, "seq_limit", -num_free_seq_slots)
            reserve = self._watermark if self.running else 0
            admit = self._admit_swapped if queue is self.swapped else self._admit_waiting
            result = admit(seq_group, budget, reserve, may_admit=may_admit)
            if isinstance(result, AdmissionBlocked):
                return admitted, result
            queue.discard(seq_group)
            self.running.add(seq_group)
            for seq in unfinished_seqs(seq_group):
                seq.status = SequenceStatus.RUNNING
            budget -= result.num_batched_tokens
            admitted.append(result)
        return admitted, None

    def _admit_waiting(
        self, seq_group: SequenceGroup, budget: int, reserve: int, *, may_admit: bool
    ) -> ScheduledSequenceGroup | AdmissionBlocked:
        """Allocates the blocks for all tokens of a waiting group, and schedules its first chunk."""
        manager, seqs = self.block_manager, unfinished_seqs(seq_group)
        computed = manager.get_computed_blocks(seqs, use_cache=_may_use_cache(seq_group))
        num_cached = len(computed.blocks) * manager.block_size
        num_new = seqs[0].get_len() - num_cached
        num_least = len(seqs) * (1 if self.config.enable_chunked_prefill else num_new)
        if num_least > budget:
            return AdmissionBlocked(seq_group.request_id, "token_budget", num_least - budget)
        num_missing = manager.num_missing_blocks(computed.num_required_blocks, reserve)
        if num_missing or not may_admit:
            return AdmissionBlocked(seq_group.request_id, "no_blocks", num_missing)
        manager.allocate_slots(seqs, computed)
        for seq in seqs:
            seq.data.update_num_cached_tokens(num_cached)
        chunk = min(num_new, budget // len(seqs))
        return ScheduledSequenceGroup(
            seq_group, num_cached + chunk, chunk * len(seqs), is_prompt=True
        )

    def _admit_swapped(
        self, seq_group: SequenceGroup, budget: int, reserve: int, *, may_admit: bool
    ) -> ScheduledSequenceGroup | AdmissionBlocked:
        """Swaps a group's blocks in; it continues where it was."""
        manager, seqs = self.block_manager, unfinished_seqs(seq_group)
        if len(seqs) > budget:
            return AdmissionBlocked(seq_group.request_id, "token_budget", len(seqs) - budget)
        num_missing = manager.num_missing_blocks(manager.num_to_swap_in(seqs), reserve)
        if num_missing or not may_admit:
            return AdmissionBlocked(seq_group.request_id, "no_blocks", num_missing)
        self._moves.swap_in += manager.swap_in(seqs)
        self._moves.copy += manager.append_slots(seqs)
        chunk = min(seqs[0].get_num_new_tokens(), budget // len(seqs))
        return ScheduledSequenceGroup(
            seq_group, chunk, chunk * len(seqs), is_prompt=seq_group.is_prefill()
        )

    def _victim(self, for_group: SequenceGroup) -> SequenceGroup:
        """Returns the group to preempt: one behind `for_group` (not scheduled yet), or itself."""
        behind = self.running[self.running.index(for_group) + 1 :]
        if not behind:
            return for_group
        return self._policy.victim(behind, self._num_blocks)

    def _preempt(self, victim: SequenceGroup, for_group: SequenceGroup) -> PreemptionRecord:
        """Moves a running group to the waiting or swapped queue, and frees its blocks."""
        seqs = unfinished_seqs(victim)
        mode = self._preemption_mode(victim)
        preemption = PreemptionRecord(
            request_id=victim.request_id,
            mode=mode,
            seq_ids=[seq.seq_id for seq in seqs],
            num_lost_tokens=(
                0 if mode == "swap" else sum(seq.get_num_computed_tokens() for seq in seqs)
            ),
            for_request_id=for_group.request_id,
        )
        self.running.remove(victim)
        if mode == "swap":
            self._moves.swap_out += self.block_manager.swap_out(seqs)
            self.swapped.add(victim)
        else:
            self._metadata.remove(victim.request_id)
            self.waiting.add(victim)
        for seq in seqs:
            if mode == "swap":
                seq.status = SequenceStatus.SWAPPED
            else:
                self.block_manager.free(seq)
                seq.reset_state_for_recompute()
                seq.status = SequenceStatus.WAITING
        return preemption

    def _preemption_mode(self, victim: SequenceGroup) -> PreemptionMode:
        seqs = unfinished_seqs(victim)
        is_wanted = self.config.preemption_mode == "swap" or len(seqs) > 1
        # Several sequences in recomputation share blocks that are still to be written. A swap would
        # treat them as shared by forks; little is lost by starting the recomputation again.
        is_possible = len(seqs) == 1 or not victim.is_prefill()
        if is_wanted and is_possible and self.block_manager.can_swap_out(seqs):
            return "swap"
        return "recompute"

    def _rank(self, seq_group: SequenceGroup) -> tuple[float, ...]:
        return self._ranks[seq_group.request_id]

    def _num_blocks(self, seq_group: SequenceGroup) -> int:
        tables = [self.block_manager.get_block_table(seq) for seq in unfinished_seqs(seq_group)]
        return len({block for table in tables for block in table})


def _num_tokens(scheduled: list[ScheduledSequenceGroup]) -> int:
    return sum([group.num_batched_tokens for group in scheduled])


def _may_use_cache(seq_group: SequenceGroup) -> bool:
    """Returns False if every prompt token has to be computed: for its logprobs, or for pooling."""
    params = seq_group.sampling_params
    return params is not None and params.prompt_logprobs is None
