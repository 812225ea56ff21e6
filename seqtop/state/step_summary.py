"""Summaries of a step in figures and sentences.

Pure functions of a `Step` message. Times are in seconds. Amounts are in tokens unless a name says
blocks or sequences.
"""

from collections.abc import Sequence

import msgspec

from seqtop.state.step_costs import gap_parts, time_parts
from seqtop.state.wait_causes import CAUSES, describe_limit, describe_reason, head_reason
from seqtop.text import format as fmt
from seqtop.wire.batch import block_moves, members
from seqtop.wire.messages import (
    EngineInfo,
    Preemption,
    Step,
    StepStats,
    WaitCause,
    WaitReason,
)


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
    """Seconds from the end of the step before to the start of this one, negative if this one had
    begun before; `None` if unknown."""
    was_idle: bool
    """True if no request was unfinished after the step before."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed, of prompts and outputs."""
        return self.stats.num_prefill_tokens + self.stats.num_decode_tokens

    @property
    def period(self) -> float:
        """Seconds from the end of the step before to the end of this one, as far as known."""
        return max(self.duration + (self.gap or 0.0), 0.0)

    @property
    def overlap(self) -> float:
        """Seconds of `duration` in which the step before ran, too."""
        return max(-(self.gap or 0.0), 0.0)

    @property
    def parts(self) -> dict[str, float]:
        """The seconds of each of `TIME_PARTS` in `period`; unknown parts are missing."""
        overlap = self.overlap
        parts = time_parts(self.stats, self.duration - overlap, overlap)
        if self.gap and self.gap > 0:
            parts |= gap_parts(self.gap, self.stats, was_idle=self.was_idle)
        return parts


def summarize(step: Step, *, gap: float | None = None, was_idle: bool = False) -> StepSummary:
    """Returns the figures of `step`.

    Args:
        step: The step.
        gap: Seconds from the end of the step before to the start of this one, negative if this one
            had begun before; `None` if unknown.
        was_idle: Whether no request was unfinished in between.
    """
    batch = list(members(step))
    moves = block_moves(step)
    return StepSummary(
        step=step.step,
        time=step.time,
        duration=max(step.time - step.start_time, 0.0),
        stats=step.stats,
        chunks=tuple(member.num_tokens for member in batch if member.is_prompt),
        num_decodes=sum(not member.is_prompt for member in batch),
        num_preemptions=len(step.preemptions),
        num_swapped_in=len(moves.swapped_in),
        num_swapped_out=len(moves.swapped_out),
        num_copied=len(moves.copied),
        waits=tuple(step.wait_reasons),
        gap=gap,
        was_idle=was_idle,
    )


def limited_by(step: StepSummary, info: EngineInfo | None) -> str:
    """Describes the limit of the batch's size in a few words, with its figures."""
    if step.waits:
        return describe_limit(head_reason(step.waits) or step.waits[0], info)
    cause = limiting_cause(step.stats, (), step.num_preemptions, info)
    if cause == "no_blocks":
        return f"{describe_cause(cause)}: preempted"  # the next column has their number
    if cause == "unknown":
        return f"{fmt.count(step.stats.num_waiting)} wait, {describe_cause(cause)}"
    return describe_cause(cause)


def limiting_cause(
    stats: StepStats, waits: Sequence[WaitReason], num_preemptions: int, info: EngineInfo | None
) -> WaitCause | None:
    """Returns the cause that limited the batch of a step; `None` if nothing waits.

    It is the wait reason of the head of the queue, because the others wait behind it. Without a
    wait reason, it is a token budget that is used up, or blocks for which a request was preempted.

    Args:
        stats: The figures of the step.
        waits: Its wait reasons, in the order of the queue.
        num_preemptions: Its preemptions.
        info: The engine, whose budget is compared, if it is known.
    """
    if waits:
        return (head_reason(waits) or waits[0]).cause
    num_tokens = stats.num_prefill_tokens + stats.num_decode_tokens
    budget = info.max_num_batched_tokens if info is not None else None
    if budget is not None and num_tokens >= budget:
        return "token_budget"
    if num_preemptions:
        return "no_blocks"
    return "unknown" if stats.num_waiting else None


def describe_cause(cause: WaitCause | None) -> str:
    """Describes the result of `limiting_cause` in a few words, without figures."""
    return CAUSES[cause].label if cause is not None else "nothing waits"


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
