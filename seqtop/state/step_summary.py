"""Summaries of a step in figures and sentences.

Pure functions of a `Step` message. Times are in seconds. Amounts are in tokens unless a name says
blocks or sequences.
"""

import math

import msgspec

from seqtop.sequence import (
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceStatus,
)
from seqtop.state.model import EngineData
from seqtop.state.wait_causes import CAUSES, describe_limit, describe_reason, head_reason
from seqtop.text import format as fmt
from seqtop.wire import decode_rows
from seqtop.wire.decode_rows import Decode
from seqtop.wire.messages import (
    EngineInfo,
    Preemption,
    SequenceUpdate,
    Step,
    StepStats,
    WaitReason,
)

STEP_PARTS = ("scheduler", "forward", "execute", "rest")
"""The parts of a step's duration.

`execute` is the time of the model's execution outside of the forward pass, `rest` the time that is
neither scheduling nor execution, such as output processing."""
TIME_PARTS = (*STEP_PARTS, "host", "idle")
"""The parts of an engine's time.

`host` is the time between two steps while requests are unfinished, `idle` the time without any."""


def time_parts(stats: StepStats, duration: float) -> dict[str, float]:
    """Returns the seconds of each of `STEP_PARTS`; their sum is at most `duration`.

    A part that the engine does not report is missing. What the parts leave of `duration` is
    unknown.
    """
    left = max(duration, 0.0)
    parts: dict[str, float] = {}
    executing, forward = stats.model_execute_time, stats.model_forward_time
    reported = {"scheduler": stats.scheduler_time, "forward": forward}
    if executing is not None:
        reported["execute"] = executing - (forward or 0.0)
    for name, seconds in reported.items():
        if seconds is not None:
            known = min(max(seconds, 0.0), left) if math.isfinite(seconds) else 0.0
            parts[name] = known
            left -= known
    if executing is not None:
        parts["rest"] = left
    return parts


class StepSummary(msgspec.Struct, frozen=True):
    """The figures of a step in a list of steps."""

    step: int
    time: float
    """The time at which its outputs had been processed, epoch seconds."""
    duration: float
    """Seconds from the start of scheduling to `time`."""
    stats: StepStats
    chunks: tuple[int, ...]
    """Tokens of each prefill chunk, per sequence."""
    num_decodes: int
    """Sequences that decoded; each beam of a beam search counts."""
    num_preemptions: int
    num_swapped_in: int
    """Blocks swapped in from host memory."""
    num_swapped_out: int
    num_copied: int
    """Blocks copied on the device."""
    waits: tuple[WaitReason, ...]
    gap: float | None
    """Seconds from the end of the step before to the start of this one; `None` if unknown."""
    was_idle: bool
    """True if no request was unfinished after the step before."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed, of prompts and outputs."""
        return self.stats.num_prefill_tokens + self.stats.num_decode_tokens

    @property
    def period(self) -> float:
        """Seconds from the end of the step before to the end of this one, as far as known."""
        return self.duration + (self.gap or 0.0)

    @property
    def parts(self) -> dict[str, float]:
        """The seconds of each of `TIME_PARTS` in `period`; unknown parts are missing."""
        parts = time_parts(self.stats, self.duration)
        if self.gap:
            parts["idle" if self.was_idle else "host"] = self.gap
        return parts


def has_work(stats: StepStats) -> bool:
    """Returns whether requests were unfinished at the end of a step."""
    return stats.num_running > 0 or stats.num_waiting > 0 or bool(stats.num_swapped)


def summarize(step: Step, *, gap: float | None = None, was_idle: bool = False) -> StepSummary:
    """Returns the figures of `step`.

    Args:
        step: The step.
        gap: Seconds from the end of the step before to the start of this one, if known.
        was_idle: Whether no request was unfinished in between.
    """
    groups = [(group, _num_sequences(group)) for group in step.execute.seq_group_metadata_list]
    return StepSummary(
        step=step.step,
        time=step.time,
        duration=max(step.time - step.start_time, 0.0),
        stats=step.stats,
        chunks=tuple(
            group.token_chunk_size or 1
            for group, number in groups
            if group.is_prompt
            for _ in range(number)
        ),
        num_decodes=decode_rows.num_decodes(step)
        + sum(number for group, number in groups if not group.is_prompt),
        num_preemptions=len(step.preemptions),
        num_swapped_in=len(step.execute.blocks_to_swap_in),
        num_swapped_out=len(step.execute.blocks_to_swap_out),
        num_copied=len(step.execute.blocks_to_copy),
        waits=tuple(step.wait_reasons),
        gap=gap,
        was_idle=was_idle,
    )


def _num_sequences(group: SequenceGroupMetadata | SequenceGroupMetadataDelta) -> int:
    """Returns the number of sequences of a request in the batch; 1 if the engine names none."""
    data = group.seq_data if isinstance(group, SequenceGroupMetadata) else group.seq_data_delta
    return len(data) or 1


def limited_by(step: StepSummary, info: EngineInfo | None) -> str:
    """Describes the limit of the batch's size in a few words.

    It is the wait reason of the head of the queue, because the others wait behind it. Without a
    wait reason, it is an empty queue or a token budget that is used up.
    """
    if step.waits:
        return describe_limit(head_reason(step.waits) or step.waits[0], info)
    if info is not None and step.num_tokens >= info.max_num_batched_tokens:
        return CAUSES["token_budget"].label
    if step.num_preemptions:
        return f"{CAUSES['no_blocks'].label}: preempted"  # the next column has their number
    if not step.stats.num_waiting:
        return "nothing waits"
    return f"{fmt.count(step.stats.num_waiting)} wait, no reason given"


class Member(msgspec.Struct, frozen=True):
    """A sequence in the batch of a step."""

    request_id: str | None
    """`None` if neither the step nor the state names it."""
    seq_id: int
    is_prompt: bool
    chunk: int
    """Tokens computed, including verified drafts."""
    num_drafted: int = 0
    status: SequenceStatus | None = None
    """The status after the step, if the step reports it; likewise all fields below."""
    num_computed_tokens: int | None = None
    num_new_blocks: int = 0
    text_delta: str = ""


def members(step: Step, state: EngineData) -> list[Member]:
    """Returns the sequences in the batch, in its order; those in columns come last.

    Args:
        step: The step.
        state: A state of the same engine, which has the request ids of sequences in columns, and
            the computed tokens of those whose last step this was.
    """
    owners: dict[int, str] = {}
    listed: dict[str, list[int]] = {}
    for group in step.execute.seq_group_metadata_list:
        data = group.seq_data if isinstance(group, SequenceGroupMetadata) else group.seq_data_delta
        seq_ids = list(data)
        if not seq_ids and (request := state.requests.get(group.request_id)):
            seq_ids = request.seq_ids
        listed[group.request_id] = seq_ids
        owners.update(dict.fromkeys(seq_ids, group.request_id))
    updates = {update.seq_id: update for update in step.sequences}
    found = [
        _member(group.request_id, seq_id, group.is_prompt, group.token_chunk_size or 1,
                updates.get(seq_id))
        for group in step.execute.seq_group_metadata_list
        for seq_id in listed[group.request_id]
    ]  # fmt: skip
    for seq_id, update in updates.items():
        # Updates also report preempted sequences, which are not in the batch.
        is_preempted = update.status in (SequenceStatus.WAITING, SequenceStatus.SWAPPED)
        if seq_id not in owners and not is_preempted:
            sequence = state.sequences.get(seq_id)
            owner = update.request_id or (sequence.request_id if sequence else None)
            found.append(_member(owner, seq_id, False, 1, update))
    found += [_decode(step.step, decode, state) for decode in decode_rows.decodes(step)]
    return found


def _member(
    request_id: str | None, seq_id: int, is_prompt: bool, chunk: int, update: SequenceUpdate | None
) -> Member:
    if update is None:
        return Member(request_id, seq_id, is_prompt, chunk)
    drafted = update.num_draft_tokens or 0
    return Member(
        request_id,
        seq_id,
        is_prompt,
        # A decode may run several iterations.
        chunk if is_prompt else max(chunk + drafted, len(update.new_token_ids)),
        drafted,
        update.status,
        update.num_computed_tokens,
        len(update.new_blocks),
        update.text_delta,
    )


def _decode(step: int, decode: Decode, state: EngineData) -> Member:
    sequence = state.sequences.get(decode.seq_id)
    is_newest = sequence is not None and sequence.last_step == step
    return Member(
        sequence.request_id if sequence else None,
        decode.seq_id,
        is_prompt=False,
        chunk=1,
        status=SequenceStatus.RUNNING,
        num_computed_tokens=sequence.num_computed_tokens if sequence and is_newest else None,
        num_new_blocks=int(decode.new_block is not None),
        text_delta=decode.text_delta,
    )


def preemption_cause(request_id: str, other: str | None) -> str:
    """Returns the cause of a preemption, as the end of a sentence; empty if it is unknown."""
    if other == request_id:
        return " because no blocks were free for it"
    return f" to make room for {other}" if other else ""


def describe_preemption(preemption: Preemption) -> str:
    """Describes a preemption in a sentence."""
    cause = preemption_cause(preemption.request_id, preemption.for_request_id)
    if preemption.mode == "swap":
        return f"{preemption.request_id} was swapped out{cause}; nothing is lost."
    lost = fmt.plural(preemption.num_lost_tokens, "computed token")
    return f"{preemption.request_id} was preempted{cause}; {lost} will be recomputed."


def describe_wait(reason: WaitReason, info: EngineInfo | None) -> str:
    """Describes the reason why a request was left waiting, in a sentence."""
    return f"{reason.request_id} waits: {describe_reason(reason, info)}."
