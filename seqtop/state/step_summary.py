"""One step of an engine in figures and sentences: what it ran, what it could not, and why.

Pure functions of a `Step` as it came over the wire. Times are seconds, amounts are tokens unless a
name says blocks or sequences.
"""

import msgspec

from seqtop import format as fmt
from seqtop.sequence import (
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceStatus,
)
from seqtop.state import EngineState
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


class StepSummary(msgspec.Struct, frozen=True):
    """What a list of steps shows of one."""

    step: int
    time: float
    """When its outputs had been processed, epoch seconds."""
    duration: float
    """From the beginning of scheduling to `time`."""
    stats: StepStats
    chunks: tuple[int, ...]
    """Tokens of each prefill chunk, per sequence."""
    num_decodes: int
    """Sequences that decoded: of a beam search as many as it has beams."""
    num_preemptions: int
    num_swapped_in: int
    """Blocks that came back from host memory."""
    num_swapped_out: int
    num_copied: int
    """Blocks copied on the device."""
    waits: tuple[WaitReason, ...]

    @property
    def num_tokens(self) -> int:
        return self.stats.num_prefill_tokens + self.stats.num_decode_tokens

    @property
    def rest(self) -> float | None:
        """Time that neither scheduling nor executing the model takes; `None` if not told."""
        executing = self.stats.model_execute_time
        if executing is None:
            return None
        return max(self.duration - self.stats.scheduler_time - executing, 0.0)


def summary(step: Step) -> StepSummary:
    """The figures of `step`."""
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
    )


def _num_sequences(group: SequenceGroupMetadata | SequenceGroupMetadataDelta) -> int:
    """How many sequences of a request are in the batch; an engine that names none has one each."""
    data = group.seq_data if isinstance(group, SequenceGroupMetadata) else group.seq_data_delta
    return len(data) or 1


def limit(step: StepSummary, info: EngineInfo | None) -> str:
    """Why the step ran no more than it did, in a few words.

    The head of the queue decides: what is behind it waits for it. Where the engine gives no
    reason, nothing waiting is one and a spent budget another.
    """
    if step.waits:
        return _limit(step.waits[0], info)
    if info is not None and step.num_tokens >= info.max_num_batched_tokens:
        return "budget spent"
    if step.num_preemptions:
        return "no free blocks: preempted"  # how many, the column beside it says
    if not step.stats.num_waiting:
        return "nothing waits"
    return f"{fmt.count(step.stats.num_waiting)} wait, no reason given"


def _limit(reason: WaitReason, info: EngineInfo | None) -> str:
    missing = f": {fmt.count(reason.num_missing)} missing" if reason.num_missing > 0 else ""
    match reason.cause:
        case "no_blocks":
            return f"no free blocks{missing}"
        case "token_budget":
            return f"token budget{missing}"
        case "seq_limit":
            return f"seq limit: {fmt.count(info.max_num_seqs)}" if info else "seq limit"


class Member(msgspec.Struct, frozen=True):
    """One sequence in the batch of a step."""

    request_id: str | None
    """`None` where neither the step nor the state at hand tells."""
    seq_id: int
    is_prompt: bool
    chunk: int
    """Tokens computed, drafts that were verified among them."""
    num_drafted: int = 0
    status: SequenceStatus | None = None
    """What the step made of it, if it says; so are all that follow."""
    num_computed_tokens: int | None = None
    num_new_blocks: int = 0
    text_delta: str = ""


def members(step: Step, state: EngineState) -> list[Member]:
    """The sequences in the batch, in its order, those in columns last.

    `state` helps to tell whose each is, and what is computed of those whose last step this was.
    """
    owners: dict[int, str] = {}
    listed: dict[str, list[int]] = {}
    for group in step.execute.seq_group_metadata_list:
        data = group.seq_data if isinstance(group, SequenceGroupMetadata) else group.seq_data_delta
        known = list(data)
        if not known and (request := state.requests.get(group.request_id)):
            known = request.seq_ids
        listed[group.request_id] = known
        owners.update(dict.fromkeys(known, group.request_id))
    updates = {update.seq_id: update for update in step.sequences}
    found = [
        _member(group.request_id, seq_id, group.is_prompt, group.token_chunk_size or 1,
                updates.get(seq_id))
        for group in step.execute.seq_group_metadata_list
        for seq_id in listed[group.request_id]
    ]  # fmt: skip
    for seq_id, update in updates.items():
        # Such as lost their place are told of too, and are not in the batch.
        lost = update.status in (SequenceStatus.WAITING, SequenceStatus.SWAPPED)
        if seq_id not in owners and not lost:
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
        # A decode may go on for several iterations.
        chunk if is_prompt else max(chunk + drafted, len(update.new_token_ids)),
        drafted,
        update.status,
        update.num_computed_tokens,
        len(update.new_blocks),
        update.text_delta,
    )


def _decode(step: int, decode: Decode, state: EngineState) -> Member:
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


def for_whom(request_id: str, other: str | None) -> str:
    """How a sentence on a preemption goes on: whose need for blocks caused it, if that is told."""
    if other == request_id:
        return " for want of blocks, making way itself"
    return f" to make room for {other}" if other else ""


def preempted(preemption: Preemption) -> str:
    """A preemption in a sentence."""
    who = for_whom(preemption.request_id, preemption.for_request_id)
    if preemption.mode == "swap":
        return f"{preemption.request_id} was swapped out{who}; nothing is lost."
    lost = fmt.plural(preemption.num_lost_tokens, "computed token")
    return f"{preemption.request_id} was preempted{who}; {lost} will be recomputed."


def waits(reason: WaitReason, info: EngineInfo | None) -> str:
    """Why one request was left waiting, in a sentence."""
    missing = max(reason.num_missing, 0)
    match reason.cause:
        case "no_blocks":
            noun = "block" if missing == 1 else "blocks"
            what = f"{fmt.count(missing)} more free {noun}" if missing else "free blocks"
            return f"{reason.request_id} waited for {what}."
        case "token_budget":
            more = f"; {fmt.plural(missing, 'token')} more would have done" if missing else ""
            return f"{reason.request_id} waited as the token budget was spent{more}."
        case "seq_limit":
            most = f" {info.max_num_seqs:,}" if info else ""
            if not missing:
                return f"{reason.request_id} waited for a place: all{most} were taken."
            more = fmt.plural(missing, "more place")
            return f"{reason.request_id} waited for {more}{most and f' of the{most}'}."
