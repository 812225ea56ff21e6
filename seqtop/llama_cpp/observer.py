"""The messages that follow from the slots of llama.cpp's server, poll by poll.

A slot says how far its request is, not what it consists of: no token, no text, no reason for an
end. Token ids are therefore zeros, as in a redacted stream, and what is unknown is declared in
`EngineInfo.not_available`.
"""

from __future__ import annotations

import uuid

import msgspec

from seqtop.llama_cpp.client import Props, Slot
from seqtop.sequence import (
    ExecuteModelRequest,
    RequestMetrics,
    SamplingParams,
    SequenceData,
    SequenceDataDelta,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceStage,
    SequenceStatus,
)
from seqtop.wire.messages import (
    EngineInfo,
    Event,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
    StepStats,
)

_ENDED = SequenceStatus.FINISHED_STOPPED
_ARRIVAL = "llama.cpp's server does not say when a request arrived"
_POLL = "tokens are seen poll by poll, and not one by one"
NOT_AVAILABLE = {
    **dict.fromkeys(("queue", "waited", "ttft", "e2e", "tps"), _ARRIVAL),
    "itl": _POLL,
    **dict.fromkeys(
        ("why", "harm"), "llama.cpp's server says how many requests wait, not which ones"
    ),
    "prio": "llama.cpp's server has no priorities",
    "preempt": "llama.cpp's server does not preempt",
    "lost": "llama.cpp's server does not preempt",
    "steps": "a step is a poll, in which the server may have run several batches",
    "prefix_misses": "llama.cpp's server does not say why tokens were not found",
    "token_budget": "llama.cpp's server does not say how many tokens a batch may have",
    "finish_reason": "llama.cpp's server does not say why a request ended: stop stands for any end",
}
"""Columns and figures that slots do not give, and the reasons."""


def engine_info(url: str, props: Props, slots: list[Slot], time: float) -> EngineInfo:
    """Returns the description of a server.

    Args:
        url: The address, which is the name of the engine.
        props: Its properties.
        slots: Its slots.
        time: The present time in seconds since the epoch.
    """
    n_ctx = max([slot.n_ctx for slot in slots], default=props.default_generation_settings.n_ctx)
    return EngineInfo(
        engine_id=url,
        incarnation=uuid.uuid4().hex,
        engine=f"llama.cpp {props.build_info}".strip(),
        model=props.model_alias or props.model_path,
        dtype=props.model_ftype or "unknown",
        device="unknown",
        start_time=time,
        block_size=max(n_ctx, 1),
        num_gpu_blocks=len(slots),
        num_cpu_blocks=None,
        max_num_seqs=len(slots),
        max_num_batched_tokens=None,
        max_model_len=n_ctx,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        preemption_mode="recompute",
        redacted=True,
        queue_order="fcfs",
        not_available=NOT_AVAILABLE,
    )


class _Task(msgspec.Struct):
    """A request in a slot, as viewers know it."""

    request_id: str
    seq_id: int
    slot: int
    metrics: RequestMetrics
    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_decoded: int = 0
    has_run: bool = False
    """True after the first step that it was in."""


class _Step(msgspec.Struct):
    """The contents of a step while the slots are compared."""

    batch: list[SequenceGroupMetadata | SequenceGroupMetadataDelta] = []
    updates: list[SequenceUpdate] = []
    metrics: dict[str, RequestMetrics] = {}
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0


class Observer:
    """Compares the slots of each poll with those of the poll before."""

    def __init__(self) -> None:
        self._tasks: dict[int, _Task] = {}
        """The requests by their slots."""
        self._num_steps = self._num_sequences = 0
        self._num_queries = self._num_hits = 0
        self._stats: StepStats | None = None

    def observe(
        self, slots: list[Slot], num_deferred: int, before: float, time: float
    ) -> list[Event]:
        """Returns what has happened since the last poll.

        Args:
            slots: The present slots.
            num_deferred: Requests that wait for a slot.
            before: The time of the last poll in seconds since the epoch.
            time: The time of this one.
        """
        busy = {slot.id: slot for slot in slots if slot.is_processing}
        ended = [task for task in self._tasks.values() if not _has(busy.get(task.slot), task)]
        for task in ended:
            del self._tasks[task.slot]
        events: list[Event] = []
        step = _Step()
        for task in ended:
            update = SequenceUpdate(seq_id=task.seq_id, status=_ENDED, block_table=[])
            step.updates.append(update)
        for number, slot in busy.items():
            if number not in self._tasks:
                events.append(self._add(slot, before))
            self._advance(self._tasks[number], slot, step, before, time)
        stats = self._new_stats(slots, num_deferred, step)
        if step.batch or step.updates or not _same_queue(stats, self._stats):
            events.append(
                Step(
                    step=self._num_steps,
                    start_time=before,
                    time=time,
                    execute=ExecuteModelRequest([*step.batch]),
                    sequences=step.updates,
                    stats=stats,
                    metrics=step.metrics,
                )
            )
            self._num_steps += 1
        self._stats = stats
        for task in ended:
            task.metrics.finished_time = time
            events.append(
                RequestFinished(
                    request_id=task.request_id, time=time, status=_ENDED, metrics=task.metrics
                )
            )
        return events

    def _add(self, slot: Slot, before: float) -> RequestArrived:
        """Adds the request of a slot, and returns its arrival."""
        task = _Task(
            _request_id(slot),
            self._num_sequences,
            slot.id,
            RequestMetrics(before, before, None, None, None),
            slot.num_prefilled,
        )
        self._tasks[slot.id] = task
        self._num_sequences += 1
        return RequestArrived(
            request_id=task.request_id,
            arrival_time=before,
            seq_ids=[task.seq_id],
            num_prompt_tokens=task.num_prompt_tokens,
            sampling_params=_sampling_params(slot),
            metrics=task.metrics,
            lora=next((f"adapter {used.id}" for used in slot.params.lora if used.scale), ""),
        )

    def _advance(self, task: _Task, slot: Slot, step: _Step, before: float, time: float) -> None:
        """Adds to a step what a slot has done since the last poll."""
        num_prompt_tokens = max(slot.num_prefilled, task.num_prompt_tokens)
        num_cached = max(slot.n_prompt_tokens_cache or 0, 0)
        num_decoded = max(slot.num_decoded, task.num_decoded)
        # The newest token of the output has not been computed.
        computed = num_prompt_tokens + max(num_decoded - 1, 0)
        start = task.num_computed_tokens if task.has_run else min(num_cached, computed)
        chunk, num_new = computed - start, num_decoded - task.num_decoded
        if chunk <= 0 and num_new == 0:
            return
        is_new, is_prompt = not task.has_run, task.num_decoded == 0
        if is_new or num_prompt_tokens != task.num_prompt_tokens:
            data = SequenceData.from_seqs([0] * num_prompt_tokens, [0] * task.num_decoded)
            data.update_num_computed_tokens(start)
            data.update_num_cached_tokens(num_cached)
            step.batch.append(
                SequenceGroupMetadata(
                    request_id=task.request_id,
                    is_prompt=is_prompt,
                    seq_data={task.seq_id: data},
                    sampling_params=_sampling_params(slot),
                    block_tables={task.seq_id: [slot.id]},
                    do_sample=num_new > 0,
                    token_chunk_size=chunk,
                )
            )
        else:
            stage = SequenceStage.PREFILL if is_prompt else SequenceStage.DECODE
            step.batch.append(
                SequenceGroupMetadataDelta(
                    seq_data_delta={task.seq_id: SequenceDataDelta([], 0.0, start, stage)},
                    request_id=task.request_id,
                    block_tables={},
                    is_prompt=is_prompt,
                    do_sample=num_new > 0,
                    token_chunk_size=chunk,
                )
            )
        if num_new:
            step.updates.append(SequenceUpdate(seq_id=task.seq_id, new_token_ids=[0] * num_new))
            task.metrics.last_token_time = time
            if is_prompt:
                task.metrics.first_token_time = time
                self._num_queries += num_prompt_tokens
                self._num_hits += num_cached
        if is_new:
            task.metrics.first_scheduled_time = before
        if is_new or (num_new and is_prompt):
            step.metrics[task.request_id] = task.metrics
        num_prefilled = min(computed, num_prompt_tokens) - min(start, num_prompt_tokens)
        step.num_prefill_tokens += num_prefilled
        step.num_decode_tokens += chunk - num_prefilled
        task.num_prompt_tokens, task.num_computed_tokens = num_prompt_tokens, computed
        task.num_decoded, task.has_run = num_decoded, True

    def _new_stats(self, slots: list[Slot], num_deferred: int, step: _Step) -> StepStats:
        num_running = sum(task.has_run for task in self._tasks.values())
        num_kept = sum(not slot.is_processing and bool(slot.n_prompt_tokens) for slot in slots)
        return StepStats(
            num_running=num_running,
            num_waiting=num_deferred + len(self._tasks) - num_running,
            num_used_blocks=num_running,
            num_free_blocks=len(slots) - num_running - num_kept,
            num_cached_blocks=num_kept,
            num_prefill_tokens=step.num_prefill_tokens,
            num_decode_tokens=step.num_decode_tokens,
            prefix_cache_queries=self._num_queries,
            prefix_cache_hits=self._num_hits,
            num_preemptions=0,
            scheduler_time=None,
            model_forward_time=None,
            model_execute_time=None,
        )


def _has(slot: Slot | None, task: _Task) -> bool:
    """Returns whether a slot still has a request."""
    return slot is not None and _request_id(slot) == task.request_id


def _same_queue(stats: StepStats, before: StepStats | None) -> bool:
    """Returns whether as many requests wait, and as many slots keep a prompt, as before."""
    return before is not None and (stats.num_waiting, stats.num_cached_blocks) == (
        before.num_waiting,
        before.num_cached_blocks,
    )


def _request_id(slot: Slot) -> str:
    return f"task-{slot.id_task}" if slot.id_task is not None else f"slot-{slot.id}"


def _sampling_params(slot: Slot) -> SamplingParams:
    params = slot.params
    return SamplingParams(
        max_tokens=params.n_predict if params.n_predict > 0 else None,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
    )
