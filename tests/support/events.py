"""Builders of the messages of an engine, with values that a test may change.

Whoever needs a message in a test takes it from here, so that one place knows its fields.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from seqtop.sequence import (
    ExecuteModelRequest,
    SequenceData,
    SequenceDataDelta,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceGroupMetadataLike,
    SequenceStage,
    SequenceStatus,
)
from seqtop.state import EngineState
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import (
    EngineInfo,
    Preemption,
    PreemptionMode,
    RequestArrived,
    SequenceUpdate,
    Step,
    StepStats,
    WaitCause,
    WaitReason,
)
from seqtop.wire.snapshot import RequestSnapshot, SequenceSnapshot, Snapshot


def engine_info(**changes: Any) -> EngineInfo:
    info = EngineInfo(
        engine_id="test",
        incarnation="one",
        engine="test 1",
        model="none",
        dtype="float32",
        device="cpu",
        start_time=1.0,
        block_size=16,
        num_gpu_blocks=64,
        num_cpu_blocks=None,
        max_num_seqs=8,
        max_num_batched_tokens=128,
        max_model_len=512,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        preemption_mode="recompute",
        heartbeat_interval=0.05,
    )
    return msgspec.structs.replace(info, **changes)


def arrival(number: int) -> RequestArrived:
    return RequestArrived(
        request_id=f"req-{number}",
        arrival_time=float(number),
        seq_ids=[number],
        num_prompt_tokens=3,
        prompt="a b c",
        prompt_token_ids=Ints.of([1, 2, 3]),
    )


def engine_snapshot(truth: EngineState) -> Snapshot:
    """Returns the snapshot of an engine that knows `truth`, in which nothing has been computed."""
    return Snapshot(
        time=truth.time,
        step=truth.step,
        stats=truth.stats,
        requests=[
            RequestSnapshot(
                arrival=arrival(number),
                sequences=[SequenceSnapshot(update=update(number, SequenceStatus.WAITING, 0))],
            )
            for number in truth.sequences
        ],
    )


def stats(**changes: Any) -> StepStats:
    empty = StepStats(
        num_running=0,
        num_waiting=0,
        num_used_blocks=0,
        num_free_blocks=64,
        num_cached_blocks=0,
        num_prefill_tokens=0,
        num_decode_tokens=0,
        prefix_cache_queries=0,
        prefix_cache_hits=0,
        num_preemptions=0,
        scheduler_time=0.001,
        model_forward_time=0.01,
        model_execute_time=0.02,
    )
    return msgspec.structs.replace(empty, **changes)


def step(number: int, *groups: SequenceGroupMetadataLike, **fields: Any) -> Step:
    """Returns a step that ran `groups`, without updates unless `fields` has some."""
    values: dict[str, Any] = {
        "start_time": 100.0 + number,
        "time": 100.5 + number,
        "execute": ExecuteModelRequest(list(groups)),
        "sequences": [],
        "stats": stats(),
    }
    return Step(step=number, **(values | fields))


def update(
    seq_id: int,
    status: SequenceStatus | None = None,
    computed: int | None = None,
    *,
    tokens: Sequence[int] = (),
    text: str = "",
    logprobs: Sequence[float] = (),
    blocks: Sequence[int] = (),
    table: list[int] | None = None,
    cached: int | None = None,
    drafted: int | None = None,
    accepted: int | None = None,
    parent: int | None = None,
    **fields: Any,
) -> SequenceUpdate:
    """Returns the update of a sequence.

    Args:
        seq_id: The sequence.
        status: Its status after the step.
        computed: Its computed tokens after the step.
        tokens: Its new tokens.
        text: The text that they add.
        logprobs: The log probability of each.
        blocks: The blocks appended to its table.
        table: The whole table, if it is replaced.
        cached: The tokens that were found in the prefix cache.
        drafted: The tokens of its draft.
        accepted: Those that became output.
        parent: The sequence that it was forked from.
        fields: Other fields of the update.
    """
    return SequenceUpdate(
        seq_id=seq_id,
        status=status,
        num_computed_tokens=computed,
        new_token_ids=[*tokens],
        text_delta=text,
        new_logprobs=[*logprobs],
        new_blocks=[*blocks],
        block_table=table,
        num_cached_tokens=cached,
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
        parent_seq_id=parent,
        **fields,
    )


def preemption(
    request_id: str, *, mode: PreemptionMode = "recompute", lost: int = 0, by: str | None = None
) -> Preemption:
    """Returns a preemption that loses `lost` computed tokens, for the blocks that `by` needs."""
    return Preemption(request_id, mode, lost, by)


def wait_reason(request_id: str, cause: WaitCause, missing: int = 0) -> WaitReason:
    """Returns the reason why a request waits, with the blocks or tokens that are missing."""
    return WaitReason(request_id, cause, missing)


def delta(
    request_id: str,
    *seq_ids: int,
    computed: int = 3,
    tokens: list[int] | None = None,
    outputs: dict[int, tuple[list[int], float]] | None = None,
    **fields: Any,
) -> SequenceGroupMetadataDelta:
    """Returns the delta of a scheduled group, by default of one that decodes.

    Args:
        request_id: The group's request.
        seq_ids: Its sequences.
        computed: The computed tokens of each before the step.
        tokens: The tokens of each that its last delta did not have.
        outputs: The same by sequence, with the log probability of the whole output.
        fields: Other fields of the delta.
    """
    is_prompt = fields.setdefault("is_prompt", False)
    stage = SequenceStage.PREFILL if is_prompt else SequenceStage.DECODE
    outputs = outputs or dict.fromkeys(seq_ids, (tokens or [], -1.5))
    data = {seq_id: SequenceDataDelta(*outputs[seq_id], computed, stage) for seq_id in seq_ids}
    values: dict[str, Any] = {"block_tables": {}, "token_chunk_size": 1} | fields
    return SequenceGroupMetadataDelta(data, request_id, **values)


def full(
    request_id: str, seq_id: int, *, chunk: int, cached: int = 0, **fields: Any
) -> SequenceGroupMetadata:
    """Returns the full metadata of a request whose prompt, or a chunk of it, is scheduled."""
    data = fields.pop("data", None) or SequenceData.from_seqs([0] * chunk)
    data.update_num_cached_tokens(cached)
    values: dict[str, Any] = {
        "sampling_params": None,
        "block_tables": {},
        "token_chunk_size": chunk,
    } | fields
    return SequenceGroupMetadata(request_id, True, {seq_id: data}, **values)
