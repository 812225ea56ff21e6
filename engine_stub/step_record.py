"""The record of one step of the engine, complete enough that an observer has nothing to infer.

Times are readings of the engine's clock (seconds since the epoch), durations are seconds, lengths
are tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import msgspec

from seqtop.sequence import ExecuteModelRequest, Logprob, Sequence, SequenceGroup
from seqtop.wire.messages import PreemptionMode, WaitCause

T = TypeVar("T")


# A step makes one for each group, and a struct is made in a tenth of a dataclass's time.
class ScheduledSequenceGroup(msgspec.Struct, frozen=True):
    """A group that runs in a step.

    Attributes:
        token_chunk_size: Tokens by which each of its sequences advances, including those from the
            prefix cache.
        num_batched_tokens: Tokens computed for all its sequences, over all iterations and with
            drafts of full length; these count against the budget.
        is_prompt: Whether it is in prefill.
        num_lookahead_slots: Slots allocated beyond those for the tokens that it has.
    """

    seq_group: SequenceGroup
    token_chunk_size: int
    num_batched_tokens: int
    is_prompt: bool
    num_lookahead_slots: int = 0


@dataclass(frozen=True, slots=True)
class PreemptionRecord:
    """The preemption of a running group, which lost its blocks and waits again.

    Attributes:
        seq_ids: Its unfinished sequences.
        num_lost_tokens: Their computed tokens that have to be computed again; 0 for a swap.
        for_request_id: The request that needed a block; the group's own id if no other group
            could be preempted.
    """

    request_id: str
    mode: PreemptionMode
    seq_ids: list[int]
    num_lost_tokens: int
    for_request_id: str


@dataclass(frozen=True, slots=True)
class AdmissionBlocked:
    """The reason why the first waiting or swapped group was not admitted; all others queue behind.

    Attributes:
        num_missing: Missing blocks for "no_blocks" (0 if the step preempted, and so admits no
            group), tokens of the budget for "token_budget", sequences for "seq_limit".
    """

    request_id: str
    cause: WaitCause
    num_missing: int


@dataclass(frozen=True, slots=True)
class BlockStats:
    """Blocks by state, and totals of the prefix cache since the engine started.

    Attributes:
        total: Blocks in the device's pool: `used` + `cached` + `free`.
        prefix_queries: Tokens of all sequences that were placed, counted at each placement.
        prefix_hits: Those of them that were found in the cache.
        total_cpu: Blocks in host memory.
        free_cpu: Those of them that are free.
    """

    total: int
    used: int
    cached: int
    free: int
    prefix_queries: int
    prefix_hits: int
    total_cpu: int
    free_cpu: int


class BlockRemoved(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A block that the prefix cache evicted; vLLM's event of this name.

    Attributes:
        block_hash: The hash of the content that was lost.
        seq_id: The sequence that got the block.
    """

    block: int
    block_hash: bytes
    seq_id: int


class BlockStored(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """A full, computed block that was added to the prefix cache; vLLM's event of this name.

    Attributes:
        seq_id: The sequence that computed it.
        position: Its logical position in the table of that sequence.
    """

    block: int
    block_hash: bytes
    seq_id: int
    position: int


class PrefixQueried(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The lookup in the prefix cache with which a group was admitted.

    Attributes:
        seq_ids: The sequences of the group, all of one length.
        num_tokens: The tokens of each.
        num_hits: Leading blocks of each that were found.
        missed: For each sequence, the hashes of the full blocks after these, except one that holds
            the last token, which has to be computed in any case.
        use_cache: Whether the group may use the cache.
    """

    seq_ids: list[int]
    num_tokens: int
    num_hits: int
    missed: list[list[bytes]]
    use_cache: bool


CacheEvent: TypeAlias = BlockStored | BlockRemoved | PrefixQueried


class TableChanges(msgspec.Struct, array_like=True):
    """Changes of block tables in a step; the lists in it are never modified.

    It has no entries for sequences that are admitted with a first table, whose groups are sent to
    the worker in full, and none for sequences that lose their tables.

    Attributes:
        appended: By sequence id, the blocks appended to a table.
        replaced: By sequence id, the whole new table: of forks, and after copies of blocks.
    """

    appended: dict[int, list[int]] = {}
    replaced: dict[int, list[int]] = {}

    def append(self, seq_id: int, blocks: list[int]) -> None:
        """Adds `blocks` to the end of a table."""
        if seq_id in self.replaced:
            self.replaced[seq_id] = self.replaced[seq_id] + blocks
        elif blocks:
            self.appended[seq_id] = self.appended.get(seq_id, []) + blocks

    def replace(self, seq_id: int, blocks: list[int]) -> None:
        """Replaces a table by `blocks`."""
        self.appended.pop(seq_id, None)
        self.replaced[seq_id] = blocks


class SequenceRecord(msgspec.Struct, frozen=True):
    """The results of a step for one sequence; its other fields are those of `seq`.

    The record of a fork comes before that of its parent.

    Attributes:
        new_token_ids: Tokens sampled, including the last one of a request; empty for a prefill
            chunk that is not the last.
        new_logprobs: For each of them, candidates by token id, including the sampled one.
        text_delta: Text to append to that of earlier records; for a fork, to the parent's.
        parent_seq_id: The sequence that this one was forked from in this step.
        is_removed: Whether the sequence leaves its group: a beam that better ones replaced.
        num_draft_tokens: Tokens of a draft that the step verified; None without a draft.
        num_accepted_tokens: Those of them that are among `new_token_ids`.
    """

    request_id: str
    seq: Sequence
    new_token_ids: list[int]
    new_logprobs: list[dict[int, Logprob]]
    text_delta: str
    parent_seq_id: int | None = None
    is_removed: bool = False
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None


class PlainDecodes(msgspec.Struct):
    """The results of a step for its plain decodes: one entry in each list per sequence.

    A plain decode is one of a group with a single sequence and without candidates, drafts or
    lookahead slots: it got one token, and continues.

    Attributes:
        seq_groups: The groups, in the order of the batch.
        seq_ids: The sequence of each.
        token_ids: The token that it got.
        logprobs: The log probability of the token.
        texts: The new text, see `SequenceRecord.text_delta`.
    """

    seq_groups: list[SequenceGroup] = []
    seq_ids: list[int] = []
    token_ids: list[int] = []
    logprobs: list[float] = []
    texts: list[str] = []

    def append(
        self, seq_group: SequenceGroup, seq_id: int, token_id: int, logprob: float, text: str
    ) -> None:
        """Adds the result of one sequence."""
        self.seq_groups.append(seq_group)
        self.seq_ids.append(seq_id)
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        self.texts.append(text)

    def records(self) -> list[SequenceRecord]:
        """Returns a record for each sequence. Called before the next step."""
        return [
            SequenceRecord(
                group.request_id,
                group.first_seq,
                [token_id],
                group.first_seq.output_logprobs[-1:],
                text,
            )
            for group, token_id, text in zip(
                self.seq_groups, self.token_ids, self.texts, strict=True
            )
        ]


def sampled_request_ids(decodes: PlainDecodes, others: list[SequenceRecord]) -> set[str]:
    """Returns the ids of the groups that sampled a token."""
    sampled = {group.request_id for group in decodes.seq_groups}
    sampled.update(update.request_id for update in others if update.new_token_ids)
    return sampled


def merged(others: list[T], positions: list[int], rest: list[T]) -> list[T]:
    """Inserts each of `others` into `rest`, at its position in the result, and returns `rest`."""
    for position, other in zip(positions, others, strict=True):
        rest.insert(position, other)
    return rest


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, as of after its outputs were processed.

    Groups and sequences are the engine's own objects, which the next step changes: read them
    before it. `execute_model_req` is a value that neither engine nor worker changes later.

    Attributes:
        step: Number of the step, from 0.
        start_time: When scheduling began: the `first_scheduled_time` of groups new in this step.
        time: The end: `last_token_time` of groups that sampled, `finished_time` of `finished`.
        execute_model_req: The request to the worker. Without any group if there was nothing to run
            and only `finished_requests_ids` to send.
        scheduled: Groups that ran, in the order of `execute_model_req`.
        decodes: The results of plain decodes.
        others: One record per other sequence of those groups, and one per fork, in the same order.
        other_positions: The position of each in `updates`.
        other_groups: The positions in `scheduled` of their groups.
        table_changes: Changes of the block tables of sequences that already had some.
        finished: Groups that ended in this step, by stopping or at a length limit.
        ignored: Groups refused since the last step, because no step could hold their prompts.
        aborted: Groups aborted since the last step.
        changed_metrics: Groups whose metrics changed by more than what follows from the times of
            the step: those scheduled for the first time, with a first token, or with a draft.
        errors: By request id, the error of each group that could not be processed. These groups
            are among `finished`, with status ``FINISHED_ABORTED``.
        preemptions: Preempted groups, in order.
        admission_blocked: The reason why the first waiting or swapped group was not admitted; None
            if there is no such group.
        num_prefill_tokens: Prompt (or recomputed) tokens that were computed.
        num_decode_tokens: Decode tokens that were computed.
        token_budget: The limit on the sum of both.
        num_running: Sequences that are running after this step.
        num_waiting: Sequences that are waiting after this step.
        num_swapped: Sequences that are swapped out after this step.
        blocks: The KV pools after this step.
        cache_events: Events of the prefix cache in this step, in order.
        scheduler_time: Duration of scheduling.
        model_forward_time: Duration of the model's forward pass.
        model_execute_time: Duration of the worker's part: preparation, forward pass, sampling.
        step_time: Duration of the whole step.
    """

    step: int
    start_time: float
    time: float
    execute_model_req: ExecuteModelRequest
    scheduled: list[ScheduledSequenceGroup]
    decodes: PlainDecodes
    others: list[SequenceRecord]
    other_positions: list[int]
    other_groups: list[int]
    table_changes: TableChanges
    finished: list[SequenceGroup]
    ignored: list[SequenceGroup]
    aborted: list[SequenceGroup]
    changed_metrics: list[SequenceGroup]
    errors: dict[str, str]
    preemptions: list[PreemptionRecord]
    admission_blocked: AdmissionBlocked | None
    num_prefill_tokens: int
    num_decode_tokens: int
    token_budget: int
    num_running: int
    num_waiting: int
    num_swapped: int
    blocks: BlockStats
    cache_events: list[CacheEvent]
    scheduler_time: float
    model_forward_time: float
    model_execute_time: float
    step_time: float

    @property
    def updates(self) -> list[SequenceRecord]:
        """A new list with a record of every sequence, in the order of `scheduled`."""
        return merged(self.others, self.other_positions, self.decodes.records())
