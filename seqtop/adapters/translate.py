"""Converts observations to messages of the seqtop protocol."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, cast

import msgspec

from seqtop.adapters.cached_blocks import CachedContent
from seqtop.adapters.detokenizer import StreamDetokenizer
from seqtop.adapters.observations import (
    AllRequests,
    AnyObservation,
    Arrived,
    BlocksEvicted,
    BlocksStored,
    CacheReset,
    Counts,
    CurrentRequest,
    EngineStarted,
    EngineStopping,
    LookedUp,
    RequestEnded,
    Stepped,
    StreamingInput,
)
from seqtop.adapters.request import (
    Names,
    PublishedRequest,
    sampling_params,
    shortened,
)
from seqtop.adapters.step_builder import StepBuilder
from seqtop.prefix_cache.prefix_history import PrefixHistory, PrefixLookup
from seqtop.sequence import SamplingParams, SequenceStatus
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import (
    ControlCall,
    CudaGraph,
    EngineInfo,
    Event,
    PrefixMiss,
    QueueOrder,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
    StepStats,
    StreamingUpdate,
    WaitCause,
    WaitReason,
)
from seqtop.wire.snapshot import RequestSnapshot, SequenceSnapshot, Snapshot

_QUEUE_ORDERS: Final[dict[str, QueueOrder]] = {
    "priority": "priority",
    "priority_alone": "priority_alone",
    "preempted_last": "preempted_last",
    "unknown": "unknown",
}
"""The order of the queue by policy. That of all of vLLM's other policies is first come."""
_STILL_WAITS: Final = (SequenceStatus.WAITING, SequenceStatus.SWAPPED)


def engine_info(started: EngineStarted, *, redacted: bool = False) -> EngineInfo:
    """Returns the description of the engine for viewers. Data that it does not have is None."""
    return EngineInfo(
        engine_id=started.engine_id,
        incarnation=uuid.uuid4().hex,
        engine=started.engine,
        model=started.model,
        dtype=started.dtype,
        device=started.device,
        start_time=started.start_time,
        block_size=started.block_size,
        num_gpu_blocks=started.num_gpu_blocks,
        num_cpu_blocks=started.num_cpu_blocks,
        max_num_seqs=started.max_num_seqs,
        max_num_batched_tokens=started.max_num_batched_tokens,
        max_model_len=started.max_model_len,
        enable_chunked_prefill=started.enable_chunked_prefill,
        enable_prefix_caching=started.enable_prefix_caching,
        preemption_mode="recompute" if started.num_cpu_blocks is None else "swap",
        redacted=redacted,
        num_reserved_blocks=started.num_reserved_blocks,
        queue_order=_QUEUE_ORDERS.get(started.policy, "fcfs"),
        tokenizer=started.tokenizer,
        data_parallel_rank=started.data_parallel_rank,
        kv_cache_groups=started.groups,
        not_available=started.not_available,
        max_loras=started.max_loras,
        max_num_encoder_input_tokens=started.max_num_encoder_input_tokens,
        encoder_cache_size=started.encoder_cache_size,
        kv_cache_specs=started.kv_cache_specs,
        bytes_per_block=started.bytes_per_block,
        scheduler_settings=started.scheduler_settings,
    )


class Translator:
    """Converts one engine's observations, in order, to messages."""

    def __init__(
        self, started: EngineStarted, detokenizer: StreamDetokenizer | None = None
    ) -> None:
        self._started = started
        self._detokenizer = detokenizer
        self._stops_outside = started.stops_outside
        self._names = Names(has_random_suffix=started.has_random_suffix)
        self._requests: dict[str, PublishedRequest] = {}
        """Unfinished requests by the engine's internal id."""
        self._running: list[str] = []
        self._ran: list[str] = []
        """The requests of the last step."""
        self._ended_in_flight: list[tuple[str, PublishedRequest]] = []
        """Ended requests that may be in the batches of steps in flight, with the engine's internal
        ids, in the order of their ends."""
        self._wait_reasons: list[tuple[str, PublishedRequest, WaitCause]] = []
        """The requests that the last call of `schedule` left waiting, with the engine's internal
        ids, and the reasons. They hold until the next call, though several steps may end before."""
        self._until = 0.0
        """The end of the last step, or the time of the state that was sent after it."""
        self._num_seqs = self._num_steps = self._num_preemptions = 0
        self._history = PrefixHistory()
        self._cached = CachedContent() if started.reports_cached_blocks else None
        self.is_incomplete = False
        """True if an observation is missing, until the next `AllRequests`."""

    def events(self, observation: AnyObservation) -> Iterator[Event | Snapshot]:
        """Yields the messages for an observation."""
        match observation:
            case Arrived():
                yield from self._arrived(observation)
            case RequestEnded():
                yield from self._ended(observation)
            case StreamingInput():
                yield from self._streaming_input(observation)
            case Stepped():
                yield from self._stepped(observation)
            case AllRequests():
                yield self._all_requests(observation)
            case EngineStarted() | EngineStopping():
                pass

    def _arrived(self, observation: Arrived) -> Iterator[RequestFinished | RequestArrived]:
        if (earlier := self._requests.get(observation.request_id)) is not None:
            yield self._replaced(earlier, observation)
        params = sampling_params(observation.sampling_params)
        request = PublishedRequest.of(
            observation,
            self._num_seqs,
            self._names.of(observation.request_id),
            params,
            is_stopped_outside=self._stops_outside,
        )
        self._num_seqs += 1
        self._requests[observation.request_id] = request
        yield self._arrival(request, observation, params)

    def _replaced(self, earlier: PublishedRequest, observation: Arrived) -> RequestFinished:
        """Ends a request whose id another one has now."""
        if (ended := observation.before) is not None:
            self._end(earlier, ended)
        elif not SequenceStatus.is_finished(earlier.status):  # the engine has lost it
            earlier.status = SequenceStatus.FINISHED_ABORTED
            earlier.metrics.finished_time = observation.arrival_time
        time = earlier.end_time or observation.arrival_time
        event = self._finished(observation.request_id, earlier, time)
        event.num_schedule_calls = ended.num_schedule_calls if ended is not None else None
        return event

    def _ended(self, observation: RequestEnded) -> Iterator[RequestFinished]:
        """Ends a request between two steps."""
        request = self._requests.get(observation.request_id)
        if request is None:
            return
        self._end(request, observation)
        yield self._finished(observation.request_id, request, observation.time)

    def _end(self, request: PublishedRequest, ended: RequestEnded) -> None:
        request.end(ended)
        request.metrics.finished_time = ended.time
        self._record_in_flight(request, ended)

    def _record_in_flight(self, request: PublishedRequest, ended: RequestEnded) -> None:
        # The tokens of steps in flight are included in the engine's number.
        in_flight = replace(request, num_computed_tokens=ended.num_computed_tokens)
        self._ended_in_flight.append((ended.request_id, in_flight))

    def _arrival(
        self, request: PublishedRequest, observation: Arrived, params: SamplingParams | None
    ) -> RequestArrived:
        return RequestArrived(
            request_id=request.name,
            arrival_time=observation.arrival_time,
            seq_ids=[request.seq_id],
            num_prompt_tokens=observation.num_prompt_tokens,
            prompt=self._decode_prompt(observation.prompt_token_ids),
            prompt_token_ids=Ints.of(observation.prompt_token_ids),
            sampling_params=params,
            priority=observation.priority,
            engine_status=request.engine_status,
            lora=observation.lora,
            parent_request_id=shortened(observation.parent_request_id),
            eos_token_id=observation.eos_token_id,
            cache_salt=observation.cache_salt,
            traceparent=observation.traceparent,
            transfer_id=shortened(observation.transfer_id),
            num_encoder_inputs=observation.num_encoder_inputs,
            num_schedule_calls=observation.num_schedule_calls,
        )

    def _decode_prompt(self, token_ids: list[int]) -> str | None:
        return self._detokenizer.decode_prompt(token_ids) if self._detokenizer else None

    def _streaming_input(self, observation: StreamingInput) -> Iterator[StreamingUpdate]:
        request = self._requests.get(observation.request_id)
        if request is None:
            return
        request.set_prompt(observation.prompt_token_ids)
        request.num_computed_tokens = observation.num_computed_tokens
        request.is_prefill = True
        request.status, request.engine_status = SequenceStatus.WAITING, ""
        if self._detokenizer is not None:
            self._detokenizer.end(request.seq_id)
        yield StreamingUpdate(
            request_id=request.name,
            time=observation.time,
            num_computed_tokens=observation.num_computed_tokens,
            num_prompt_tokens=len(observation.prompt_token_ids),
            prompt=self._decode_prompt(observation.prompt_token_ids),
            prompt_token_ids=Ints.of(observation.prompt_token_ids),
            arrival_time=observation.arrival_time,
        )

    def _all_requests(self, observation: AllRequests) -> Snapshot:
        """Replaces everything that is known about requests."""
        before, self._requests, self._running = self._requests, {}, []
        self._ended_in_flight = []
        self._until = observation.time
        requests: list[RequestSnapshot] = []
        for current in observation.requests:
            request_id = current.arrived.request_id
            params = sampling_params(current.arrived.sampling_params)
            request = before.get(request_id)
            if request is None:
                request = PublishedRequest.of(
                    current.arrived,
                    self._num_seqs,
                    self._names.of(request_id),
                    params,
                    is_stopped_outside=self._stops_outside,
                )
                self._num_seqs += 1
            request.set_current(current)
            self._requests[request_id] = request
            if current.is_running:
                self._running.append(request_id)
            arrival = self._arrival(request, current.arrived, params)
            arrival.metrics = request.metrics
            sequence = self._sequence(request, current)
            requests.append(RequestSnapshot(arrival=arrival, sequences=[sequence]))
        self.is_incomplete = False
        self._history.forget(self._num_steps)
        return Snapshot(
            time=observation.time,
            step=self._num_steps - 1,
            stats=self._pool_stats(observation.counts),
            requests=requests,
            cached_blocks=self._cached.replace(observation.cached, self._requests)
            if self._cached is not None
            else None,
        )

    def _sequence(self, request: PublishedRequest, current: CurrentRequest) -> SequenceSnapshot:
        """Returns everything about a sequence."""
        text = ""
        if self._detokenizer is not None:
            self._detokenizer.end(request.seq_id)
            text = self._detokenizer.decode_output(
                request.seq_id,
                current.output_token_ids,
                skip_special_tokens=request.skip_special_tokens,
            )
        request.text_end, request.found_stop = "", None
        request.add_text(text)
        tables = current.tables
        return SequenceSnapshot(
            update=SequenceUpdate(
                seq_id=request.seq_id,
                status=request.status,
                num_computed_tokens=request.num_computed_tokens,
                num_cached_tokens=request.num_cached_tokens,
                num_external_tokens=request.num_external_tokens,
                block_table=list(tables[0]) if tables else [],
                engine_status=request.engine_status,
                group_block_tables=[list(table) for table in tables[1:]],
            ),
            output_token_ids=Ints.of(current.output_token_ids),
            text=text,
        )

    def _stepped(self, observation: Stepped) -> Iterator[Event]:
        """Yields the messages for a step and the requests that left the engine with it."""
        if observation.running is not None:
            self._running = observation.running
        num_scheduled = observation.num_scheduled_tokens
        if num_scheduled is None:
            num_scheduled = dict.fromkeys(self._ran, 1)
        self._ran = list(num_scheduled)
        self._ended_in_flight = [
            (request_id, request)
            for request_id, request in self._ended_in_flight
            if request.end_time is not None and request.end_time > observation.start_time
        ]
        # Of several with one id, the first one was there when the step was scheduled.
        ended_in_flight = dict(reversed(self._ended_in_flight))
        built = StepBuilder(
            observation,
            num_scheduled,
            self._running,
            self._requests,
            ended_in_flight,
            self._detokenizer,
            self._until,
        )
        self._until = observation.time
        self._num_preemptions += len(built.preemptions)
        newly_cached, uncached = None, list[int]()
        if self._cached is not None:
            newly_cached, uncached = self._cached.changes(observation.cache_events, self._requests)
        yield Step(
            step=self._num_steps,
            start_time=observation.start_time,
            time=observation.time,
            execute=built.execute(),
            sequences=built.updates(self._prefix_misses(observation)),
            stats=self._stats(observation, built),
            metrics=built.metrics,
            preemptions=built.preemptions,
            wait_reasons=self._current_wait_reasons(observation),
            newly_cached_blocks=newly_cached,
            uncached_blocks=uncached,
            num_schedule_calls=observation.num_schedule_calls,
            control_calls=[
                ControlCall(
                    name=call.name,
                    argument=call.argument,
                    num_schedule_calls=call.num_schedule_calls,
                )
                for call in observation.controls
            ],
        )
        self._num_steps += 1
        for ended in observation.ended:
            request = self._requests.get(ended.request_id)
            if request is None:
                continue
            self._record_in_flight(request, ended)
            if ended.tables is None:
                event = self._finished(ended.request_id, request, observation.time)
                event.num_schedule_calls = ended.num_schedule_calls
                yield event
        for request_id in observation.released:
            if request := self._requests.get(request_id):
                yield self._finished(request_id, request, observation.time)

    def _prefix_misses(self, observation: Stepped) -> dict[str, list[PrefixMiss]]:
        """Returns the causes of the misses of the admitted requests, by internal id."""
        history, step = self._history, self._num_steps
        misses: dict[str, list[PrefixMiss]] = {}
        for event in observation.cache_events:
            match event:
                case BlocksStored():
                    request = self._requests.get(event.request_id or "")
                    name = request.name if request else event.request_id
                    token_hashes = self._token_hashes(request, event.position, event.hashes)
                    for hashes in zip(event.hashes, token_hashes, strict=True):
                        history.store(step, name, *hashes)
                case BlocksEvicted():
                    request = self._requests.get(event.request_id or "")
                    for block_hash in event.hashes:
                        history.evict(step, request.name if request else None, block_hash)
                case CacheReset():
                    history.evict_all(step)
                case LookedUp():
                    request = self._requests.get(event.request_id or "")
                    if request is None and event.request_id is not None:
                        continue
                    first = event.num_hit_tokens // self._started.block_size
                    lookup = PrefixLookup(
                        block_size=self._started.block_size,
                        num_tokens=event.num_tokens,
                        num_hit_tokens=event.num_hit_tokens,
                        hashes=event.hashes,
                        token_hashes=self._token_hashes(request, first, event.hashes),
                        is_cacheable=event.is_cacheable,
                    )
                    name = request.name if request else None
                    (found,) = history.look_up(step, name, [lookup])
                    if event.request_id is not None:
                        misses[event.request_id] = found
        return misses

    def _token_hashes(
        self, request: PublishedRequest | None, first: int, hashes: list[bytes]
    ) -> Sequence[bytes]:
        """Returns the hashes of the tokens of blocks from `first` on; `hashes` if unknown."""
        if request is None:
            return hashes
        return request.token_hashes.of_blocks(
            request.token_ids, self._started.block_size, first, hashes
        )

    def _finished(self, request_id: str, request: PublishedRequest, time: float) -> RequestFinished:
        del self._requests[request_id]
        if self._detokenizer is not None:
            self._detokenizer.end(request.seq_id)
        return RequestFinished(
            request_id=request.name, time=time, status=request.status, metrics=request.metrics
        )

    def _stats(self, observation: Stepped, built: StepBuilder) -> StepStats:
        return msgspec.structs.replace(
            self._pool_stats(observation.counts),
            num_prefill_tokens=built.num_prefill_tokens,
            num_decode_tokens=built.num_decode_tokens,
            scheduler_time=observation.scheduler_time,
            model_execute_time=observation.execute_time,
            cuda_graph=CudaGraph(mode=graph[0], num_tokens=graph[1], num_padded_tokens=graph[2])
            if (graph := observation.cuda_graph) is not None
            else None,
            num_encoder_tokens=observation.num_encoder_tokens,
            num_used_encoder_slots=observation.num_used_encoder_slots,
        )

    def _pool_stats(self, counts: Counts) -> StepStats:
        started = self._started
        num_blocks = started.num_gpu_blocks - started.num_reserved_blocks
        has_host_blocks = started.num_cpu_blocks is not None
        num_swapped = (
            sum(request.status is SequenceStatus.SWAPPED for request in self._requests.values())
            if has_host_blocks
            else None
        )
        return StepStats(
            num_running=len(self._running),
            num_waiting=counts.num_waiting,
            num_used_blocks=num_blocks - counts.num_free_blocks,
            num_free_blocks=counts.num_free_blocks - (counts.num_cached_blocks or 0),
            num_cached_blocks=counts.num_cached_blocks,
            num_late_blocks=counts.num_late_blocks,
            num_prefill_tokens=0,
            num_decode_tokens=0,
            prefix_cache_queries=counts.num_prefix_queries,
            prefix_cache_hits=counts.num_prefix_hits,
            num_preemptions=self._num_preemptions,
            scheduler_time=0.0,
            model_forward_time=None,
            model_execute_time=None,
            num_swapped=num_swapped,
            num_free_cpu_blocks=counts.num_free_cpu_blocks,
            num_used_loras=self._num_used_loras(),
        )

    def _num_used_loras(self) -> int | None:
        if self._started.max_loras is None:
            return None
        running = (self._requests.get(request_id) for request_id in self._running)
        return len({request.lora for request in running if request is not None and request.lora})

    def _current_wait_reasons(self, observation: Stepped) -> list[WaitReason]:
        """Returns the reasons that the last call of `schedule` gave, of those that still wait."""
        if observation.scheduled:
            self._wait_reasons = [
                (request_id, request, cast(WaitCause, cause))
                for request_id, cause in observation.scheduled[-1].wait_reasons
                if (request := self._requests.get(request_id)) is not None
            ]
        return [
            WaitReason(request_id=request.name, cause=cause)
            for request_id, request, cause in self._wait_reasons
            if self._requests.get(request_id) is request and request.status in _STILL_WAITS
        ]
