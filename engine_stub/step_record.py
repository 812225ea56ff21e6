"""What one step of the engine did: all that an observer needs, and nothing it must work out.

Times are readings of the engine's clock (seconds since the epoch), durations are seconds, lengths
are tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from engine_stub.config import PreemptionMode
from engine_stub.core.block_stats import BlockStats, CacheChanges
from engine_stub.core.table_changes import TableChanges
from seqtop.sequence import ExecuteModelRequest, Logprob, Sequence, SequenceGroup

WaitCause: TypeAlias = Literal["no_blocks", "token_budget", "seq_limit"]


# There is one for each group and step, and structs are made in a tenth of a dataclass's time.
class ScheduledSequenceGroup(msgspec.Struct, frozen=True):
    """A group that ran in a step.

    Attributes:
        token_chunk_size: Tokens by which each of its sequences advances, those from the prefix
            cache included.
        num_batched_tokens: Tokens computed for all of them, in all iterations and with the longest
            drafts there may be: what counts against the budget.
        is_prompt: Whether it was in prefill.
        num_lookahead_slots: Slots that it was given for tokens beyond those it had.
    """

    seq_group: SequenceGroup
    token_chunk_size: int
    num_batched_tokens: int
    is_prompt: bool
    num_lookahead_slots: int = 0


@dataclass(frozen=True, slots=True)
class PreemptionRecord:
    """A running group lost its blocks, and waits again.

    Attributes:
        seq_ids: Its unfinished sequences.
        num_lost_tokens: Their computed tokens that have to be computed again; 0 for a swap.
        for_request_id: The request that needed a block; its own id if it had to make way.
    """

    request_id: str
    mode: PreemptionMode
    seq_ids: list[int]
    num_lost_tokens: int
    for_request_id: str


@dataclass(frozen=True, slots=True)
class AdmissionBlocked:
    """Why the first group that waits or is swapped out was not admitted; the others are behind it.

    Attributes:
        num_missing: Blocks for "no_blocks" (0 if the step preempted, and so admits nobody), tokens
            of the budget for "token_budget", places of `max_num_seqs` for "seq_limit".
    """

    request_id: str
    cause: WaitCause
    num_missing: int


class SequenceRecord(msgspec.Struct, frozen=True):
    """What a step brought a sequence that ran in it; its other fields are to be read from `seq`.

    Forks come before the update of the sequence they were forked from.

    Attributes:
        new_token_ids: Tokens sampled, the request's last one included; empty for a prefill
            chunk that is not the last.
        new_logprobs: For each of them, candidates by token id, the sampled one among them.
        text_delta: Text to append to what earlier updates brought, to the parent's for a fork.
        parent_seq_id: The sequence that this one was forked from in this very step.
        is_removed: Whether the request goes on without it: a beam that others have outdone.
        num_draft_tokens: Tokens of a draft that the step verified; None where there was none.
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


class DecodeRecord(msgspec.Struct):
    """Sequences that a step took one token further, and of which there is no more to say: columns.

    They were running and go on; nobody asked for candidates, and no draft was verified. What has
    become of their block tables is in the `table_changes` of the step.

    Attributes:
        new_logprobs: The log-probability of each new token.
        text_deltas: Text to append to what earlier steps brought.
    """

    seqs: list[Sequence] = []
    request_ids: list[str] = []
    seq_ids: list[int] = []
    new_token_ids: list[int] = []
    new_logprobs: list[float] = []
    text_deltas: list[str] = []


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, as it was after outputs had been processed.

    Groups and sequences are the engine's own objects: they change with the next step, so read
    them before it. `execute_model_req` is a value: neither engine nor worker touches it again.

    Attributes:
        step: Number of the step, from 0.
        start_time: When scheduling began: the `first_scheduled_time` of groups new in this step.
        time: The end: `last_token_time` of groups that sampled, `finished_time` of `finished`.
        execute_model_req: What the worker was sent; with no groups in it if there was nothing
            to run and only `finished_requests_ids` to tell.
        scheduled: Groups that ran, in the order of `execute_model_req`.
        decodes: The sequences of `scheduled` that are plain decodes.
        rest: Positions in `scheduled` of all other groups.
        rest_updates: One per sequence of those, and one per fork, by groups in the same order.
        table_changes: What the step did to block tables of sequences that had some already.
        finished: Groups that ended in this step, by stopping or at a length limit.
        ignored: Groups refused since the last step: no step could ever hold their prompts.
        aborted: Groups aborted since the last step.
        preemptions: Groups that lost their blocks, in the order in which they did.
        head_wait: What kept the first of those that wait or are swapped out; None without any.
        num_prefill_tokens: Prompt (or recomputed) tokens that were computed.
        num_decode_tokens: Decode tokens that were computed.
        token_budget: What both together may not exceed.
        num_running: Sequences that are running after this step.
        num_waiting: Sequences that are waiting after this step.
        num_swapped: Sequences that are swapped out after this step.
        blocks: The KV pools after this step.
        cache_changes: Which blocks the prefix cache forgot and came to know in this step.
        scheduler_time: Duration of scheduling.
        model_forward_time: Duration of the model's forward pass.
        model_execute_time: Duration of the worker's part: forward pass, sampling, preparation.
        step_time: Duration of the whole step.
    """

    step: int
    start_time: float
    time: float
    execute_model_req: ExecuteModelRequest
    scheduled: list[ScheduledSequenceGroup]
    decodes: DecodeRecord
    rest: list[int]
    rest_updates: list[SequenceRecord]
    table_changes: TableChanges
    finished: list[SequenceGroup]
    ignored: list[SequenceGroup]
    aborted: list[SequenceGroup]
    preemptions: list[PreemptionRecord]
    head_wait: AdmissionBlocked | None
    num_prefill_tokens: int
    num_decode_tokens: int
    token_budget: int
    num_running: int
    num_waiting: int
    num_swapped: int
    blocks: BlockStats
    cache_changes: CacheChanges
    scheduler_time: float
    model_forward_time: float
    model_execute_time: float
    step_time: float

    @property
    def updates(self) -> list[SequenceRecord]:
        """One per sequence of `scheduled`, and one per fork, by groups in the same order."""
        columns = self.decodes
        updates: dict[str, list[SequenceRecord]] = {
            request_id: [
                SequenceRecord(request_id, seq, [token_id], seq.output_logprobs[-1:], text)
            ]
            for request_id, seq, token_id, text in zip(
                columns.request_ids,
                columns.seqs,
                columns.new_token_ids,
                columns.text_deltas,
                strict=True,
            )
        }
        for update in self.rest_updates:
            updates.setdefault(update.request_id, []).append(update)
        return [
            update
            for scheduled in self.scheduled
            for update in updates.get(scheduled.seq_group.request_id, ())
        ]
