"""Converts observations to messages of the seqtop protocol."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

from seqtop.adapters.vllm.observations import Arrived, EngineStarted, Stepped
from seqtop.adapters.vllm.request import Names, Request, sampling_params
from seqtop.adapters.vllm.step_builder import StepBuilder
from seqtop.adapters.vllm.text import Texts
from seqtop.sequence import SequenceStatus
from seqtop.wire.messages import (
    PROTOCOL_VERSION,
    EngineInfo,
    Event,
    RequestArrived,
    RequestFinished,
    Step,
    StepStats,
    WaitCause,
    WaitReason,
)

_NUM_NULL_BLOCKS: Final = 1


def engine_info(started: EngineStarted, *, redacted: bool = False) -> EngineInfo:
    """Returns the description of the engine for viewers. Data that V1 does not have is None."""
    return EngineInfo(
        protocol_version=PROTOCOL_VERSION,
        engine_id=started.engine_id,
        incarnation=uuid.uuid4().hex,
        engine=f"vLLM {started.vllm_version}",
        model=started.model,
        dtype=started.dtype,
        device=started.device,
        start_time=started.start_time,
        block_size=started.block_size,
        num_gpu_blocks=started.num_gpu_blocks,
        num_cpu_blocks=None,
        max_num_seqs=started.max_num_seqs,
        max_num_batched_tokens=started.max_num_batched_tokens,
        max_model_len=started.max_model_len,
        enable_chunked_prefill=started.enable_chunked_prefill,
        enable_prefix_caching=started.enable_prefix_caching,
        preemption_mode="recompute",
        redacted=redacted,
        num_reserved_blocks=_NUM_NULL_BLOCKS,
        queue_order="priority" if started.policy == "priority" else "fcfs",
        tokenizer=started.tokenizer,
        data_parallel_rank=started.data_parallel_rank,
        kv_cache_groups=started.groups,
    )


class Translator:
    """Converts one engine's observations, in order, to messages."""

    def __init__(self, started: EngineStarted, texts: Texts | None = None) -> None:
        self._started = started
        self._texts = texts
        self._names = Names(has_random_suffix=started.has_random_suffix)
        self._requests: dict[str, Request] = {}
        """Unfinished requests by vLLM's internal id."""
        self._running: list[str] = []
        self._num_seqs = self._num_steps = self._num_preemptions = 0
        self._num_queries = self._num_hits = 0

    def arrived(self, observation: Arrived) -> Iterator[Event]:
        """Yields the messages for an arrival."""
        params = sampling_params(observation.sampling_params)
        request = Request.of(
            observation, self._num_seqs, self._names.of(observation.request_id), params
        )
        self._num_seqs += 1
        self._requests[observation.request_id] = request
        yield RequestArrived(
            request_id=request.name,
            arrival_time=observation.arrival_time,
            seq_ids=[request.seq_id],
            num_prompt_tokens=observation.num_prompt_tokens,
            prompt=self._texts.prompt(observation.prompt_token_ids) if self._texts else None,
            prompt_token_ids=observation.prompt_token_ids,
            sampling_params=params,
            priority=observation.priority,
            engine_status=request.engine_status,
        )

    def stepped(self, observation: Stepped) -> Iterator[Event]:
        """Yields the messages for a step and the requests that ended with it."""
        if observation.running is not None:
            self._running = observation.running
        built = StepBuilder(observation, self._running, self._requests, self._texts)
        self._num_preemptions += len(built.preemptions)
        self._num_queries += built.num_queries
        self._num_hits += built.num_hits
        yield Step(
            step=self._num_steps,
            start_time=observation.start_time,
            time=observation.time,
            execute=built.execute(),
            sequences=built.updates(),
            stats=self._stats(observation, built),
            metrics=built.metrics,
            preemptions=built.preemptions,
            wait_reasons=self._wait_reasons(observation),
            decodes=built.decodes if built.decodes.seq_ids else None,
        )
        self._num_steps += 1
        for ended in observation.ended:
            request = self._requests.pop(ended.request_id, None)
            if request is None:
                continue
            if self._texts is not None:
                self._texts.end(request.seq_id)
            request.metrics.finished_time = observation.time
            yield RequestFinished(
                request_id=request.name,
                time=observation.time,
                status=request.status,
                metrics=request.metrics,
            )

    def _stats(self, observation: Stepped, built: StepBuilder) -> StepStats:
        num_blocks = self._started.num_gpu_blocks - _NUM_NULL_BLOCKS
        return StepStats(
            num_running=len(self._running),
            num_waiting=observation.num_waiting,
            num_used_blocks=num_blocks - observation.num_free_blocks,
            num_free_blocks=observation.num_free_blocks - observation.num_cached_blocks,
            num_cached_blocks=observation.num_cached_blocks,
            num_prefill_tokens=built.num_prefill_tokens,
            num_decode_tokens=built.num_decode_tokens,
            prefix_cache_queries=self._num_queries,
            prefix_cache_hits=self._num_hits,
            num_preemptions=self._num_preemptions,
            scheduler_time=observation.scheduler_time,
            model_forward_time=None,
            model_execute_time=observation.execute_time,
        )

    def _wait_reasons(self, observation: Stepped) -> list[WaitReason]:
        """Derives the reason why the head of the queue was left waiting from the schedule."""
        run = observation.scheduled[-1] if observation.scheduled else None
        head = self._requests.get(run.head or "") if run else None
        if run is None or head is None or head.status is not SequenceStatus.WAITING:
            return []
        if head.engine_status.startswith("WAITING_FOR_"):
            return []  # more specific than any reason here
        cause: WaitCause = "no_blocks"  # also after a preemption, when nothing is admitted
        if not run.preempted and run.num_running >= self._started.max_num_seqs:
            cause = "seq_limit"
        elif not run.preempted and run.num_tokens >= self._started.max_num_batched_tokens:
            cause = "token_budget"
        return [WaitReason(request_id=head.name, cause=cause)]
