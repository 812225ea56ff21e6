"""What notes become on the wire."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Final

from seqtop.adapters.vllm.notes import Arrived, EngineStarted, Stepped
from seqtop.adapters.vllm.request import Names, Request, sampling_params
from seqtop.adapters.vllm.step import StepBuilder
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


def engine_info(hello: EngineStarted, *, redacted: bool = False) -> EngineInfo:
    """Describe the engine to its viewers; what V1 does not have is None."""
    return EngineInfo(
        protocol_version=PROTOCOL_VERSION,
        engine_id=hello.engine_id,
        incarnation=uuid.uuid4().hex,
        engine=f"vLLM {hello.vllm_version}",
        model=hello.model,
        dtype=hello.dtype,
        device=hello.device,
        start_time=hello.start_time,
        block_size=hello.block_size,
        num_gpu_blocks=hello.num_gpu_blocks,
        num_cpu_blocks=None,
        max_num_seqs=hello.max_num_seqs,
        max_num_batched_tokens=hello.max_num_batched_tokens,
        max_model_len=hello.max_model_len,
        enable_chunked_prefill=hello.enable_chunked_prefill,
        enable_prefix_caching=hello.enable_prefix_caching,
        preemption_mode="recompute",
        redacted=redacted,
        num_reserved_blocks=_NUM_NULL_BLOCKS,
        queue_order="priority" if hello.policy == "priority" else "fcfs",
        tokenizer=hello.tokenizer,
        data_parallel_rank=hello.data_parallel_rank,
        kv_cache_groups=hello.groups,
    )


class Translator:
    """Turns one engine's notes, in their order, into messages."""

    def __init__(self, hello: EngineStarted, texts: Texts | None = None) -> None:
        self._hello = hello
        self._texts = texts
        self._names = Names(has_random_suffix=hello.has_random_suffix)
        self._requests: dict[str, Request] = {}
        """Unfinished ones by vLLM's internal id."""
        self._running: list[str] = []
        self._num_seqs = self._num_steps = self._num_preemptions = 0
        self._num_queries = self._num_hits = 0

    def arrived(self, note: Arrived) -> Iterator[Event]:
        """What is to be published of an arrival."""
        params = sampling_params(note.sampling_params)
        request = Request.of(note, self._num_seqs, self._names.of(note.request_id), params)
        self._num_seqs += 1
        self._requests[note.request_id] = request
        yield RequestArrived(
            request_id=request.name,
            arrival_time=note.arrival_time,
            seq_ids=[request.seq_id],
            num_prompt_tokens=note.num_prompt_tokens,
            prompt=self._texts.prompt(note.prompt_token_ids) if self._texts else None,
            prompt_token_ids=note.prompt_token_ids,
            sampling_params=params,
            priority=note.priority,
            engine_status=request.engine_status,
        )

    def stepped(self, note: Stepped) -> Iterator[Event]:
        """What is to be published of a step, and of the ends that came with it."""
        if note.running is not None:
            self._running = note.running
        built = StepBuilder(note, self._running, self._requests, self._texts)
        self._num_preemptions += len(built.preemptions)
        self._num_queries += built.num_queries
        self._num_hits += built.num_hits
        yield Step(
            step=self._num_steps,
            start_time=note.start_time,
            time=note.time,
            execute=built.execute(),
            sequences=built.updates(),
            stats=self._stats(note, built),
            metrics=built.metrics,
            preemptions=built.preemptions,
            wait_reasons=self._wait_reasons(note),
            decodes=built.decodes if built.decodes.seq_ids else None,
        )
        self._num_steps += 1
        for ended in note.ended:
            request = self._requests.pop(ended.request_id, None)
            if request is None:
                continue
            if self._texts is not None:
                self._texts.end(request.seq_id)
            request.metrics.finished_time = note.time
            yield RequestFinished(
                request_id=request.name,
                time=note.time,
                status=request.status,
                metrics=request.metrics,
            )

    def _stats(self, note: Stepped, built: StepBuilder) -> StepStats:
        num_blocks = self._hello.num_gpu_blocks - _NUM_NULL_BLOCKS
        return StepStats(
            num_running=len(self._running),
            num_waiting=note.num_waiting,
            num_used_blocks=num_blocks - note.num_free_blocks,
            num_free_blocks=note.num_free_blocks - note.num_cached_blocks,
            num_cached_blocks=note.num_cached_blocks,
            num_prefill_tokens=built.num_prefill_tokens,
            num_decode_tokens=built.num_decode_tokens,
            prefix_cache_queries=self._num_queries,
            prefix_cache_hits=self._num_hits,
            num_preemptions=self._num_preemptions,
            scheduler_time=note.scheduler_time,
            model_forward_time=None,
            model_execute_time=note.execute_time,
        )

    def _wait_reasons(self, note: Stepped) -> list[WaitReason]:
        """Why the head of the queue was left there, worked out from what the scheduler did."""
        run = note.scheduled[-1] if note.scheduled else None
        head = self._requests.get(run.head or "") if run else None
        if run is None or head is None or head.status is not SequenceStatus.WAITING:
            return []
        if head.engine_status.startswith("WAITING_FOR_"):
            return []  # says more than any reason here
        cause: WaitCause = "no_blocks"  # also where it preempted: then it admits nobody
        if not run.preempted and run.num_running >= self._hello.max_num_seqs:
            cause = "seq_limit"
        elif not run.preempted and run.num_tokens >= self._hello.max_num_batched_tokens:
            cause = "token_budget"
        return [WaitReason(request_id=head.name, cause=cause)]
