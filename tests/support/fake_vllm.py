"""A scheduler with the attributes and methods of vLLM's V1 scheduler that the adapter goes by.

It schedules for real, in little: one token budget, a pool of blocks with a null block and a
prefix cache, preemption of whoever was admitted last, a sliding window, LoRA slots, streaming
sessions, a KV connector that loads prompts and holds the blocks of what has ended, and async
scheduling. No vLLM is needed.

Names and arguments are those of vLLM `VERSION`; `tests/vllm/fake_against_vllm.py` compares them.
What only tests use has a name in `OWN`.
"""

from __future__ import annotations

import enum
import hashlib
import time
from collections import deque
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

VERSION = "0.33.0"
BLOCK_SIZE = 4


class RequestStatus(enum.IntEnum):
    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    WAITING_FOR_REMOTE_KVS = 3
    WAITING_FOR_STREAMING_REQ = 4
    RUNNING = 5
    PREEMPTED = 6
    FINISHED_STOPPED = 7
    FINISHED_LENGTH_CAPPED = 8
    FINISHED_ABORTED = 9

    @staticmethod
    def is_finished(status: RequestStatus) -> bool:
        return status > RequestStatus.PREEMPTED


class PauseState(enum.Enum):
    UNPAUSED = 0
    PAUSED_NEW = 1


class Request:
    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        max_tokens: int,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.num_prompt_tokens = len(prompt_token_ids)
        self.tokens = list(prompt_token_ids)
        self.max_tokens = max_tokens
        self.sampling_params = SimpleNamespace(
            max_tokens=max_tokens, temperature=0.0, stop_token_ids=[*stop_token_ids]
        )
        self.arrival_time = time.time()
        self.priority = 0
        self.status = RequestStatus.WAITING
        self.stop_reason: int | None = None
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.lora_request: Any = None
        self.resumable = False
        self.encoder_inputs: list[int] = []
        self.streaming_queue: deque[Request] = deque()
        self.is_prefill_chunk = False
        self.num_output_placeholders = 0
        self.num_in_flight_tokens = 0
        self.num_stale_output_tokens = 0
        self.drop_stale_output = False
        self.last_sched_seq = 0

    @classmethod
    def from_engine_core_request(cls, request: Any, block_hasher: Any) -> Request:
        return cls(request.request_id, request.prompt_token_ids, max_tokens=3)

    def get_num_encoder_embeds(self, input_id: int) -> int:
        return self.encoder_inputs[input_id]

    def is_finished(self) -> bool:
        return RequestStatus.is_finished(self.status)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def block_hashes(self) -> list[bytes]:
        lora = self.lora_request and self.lora_request.lora_int_id
        return [
            hashlib.sha256(repr((lora, self.tokens[:end])).encode()).digest()
            for end in range(BLOCK_SIZE, len(self.tokens) + 1, BLOCK_SIZE)
        ]

    @property
    def output_token_ids(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]


class FCFSRequestQueue(deque[Request]):
    def add_request(self, request: Request) -> None:
        self.append(request)

    def pop_request(self) -> Request:
        return self.popleft()

    def peek_request(self) -> Request:
        return self[0]

    def prepend_request(self, request: Request) -> None:
        self.appendleft(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        self.extendleft(requests)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            if request in self:
                self.remove(request)


class BlockPool:
    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.blocks: list[Any] = [
            SimpleNamespace(block_id=number, ref_cnt=0, block_hash=None, is_null=number == 0)
            for number in range(num_gpu_blocks)
        ]
        self.free_queue = deque(self.blocks[1:])
        self.by_hash: dict[Any, Any] = {}
        self.hash_block_size = BLOCK_SIZE
        self.cached_block_hash_to_block = SimpleNamespace(get_one_block=self.by_hash.get)

    def cache_full_blocks(
        self,
        request: Request,
        blocks: list[Any],
        num_cached_blocks: int,
        num_full_blocks: int,
        block_size: int,
        kv_cache_group_id: int,
    ) -> None:
        for position in range(num_cached_blocks, num_full_blocks):
            block = blocks[position]
            if not block.is_null:
                block.block_hash = request.block_hashes[position]
                self.by_hash.setdefault(block.block_hash, block)

    def get_num_free_blocks(self) -> int:
        return len(self.free_queue)

    def get_new_blocks(self, num_blocks: int) -> list[Any]:
        blocks = [self.free_queue.popleft() for _ in range(num_blocks)]
        for block in blocks:
            self._maybe_evict_cached_block(block)
            block.ref_cnt += 1
        return blocks

    def _maybe_evict_cached_block(self, block: Any) -> bool:
        block_hash = block.block_hash
        if block_hash is None:
            return False
        if self.by_hash.get(block_hash) is block:
            del self.by_hash[block_hash]
        block.block_hash = None
        return True

    def touch(self, blocks: Sequence[Any]) -> None:
        for block in blocks:
            if not block.ref_cnt:
                self.free_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        for block in ordered_blocks:
            if block.is_null:
                continue
            block.ref_cnt -= 1
            if not block.ref_cnt:
                self.free_queue.append(block)

    def reset_prefix_cache(self) -> bool:
        self.by_hash.clear()
        for block in self.blocks:
            block.block_hash = None
        return True


class KVCacheManager:
    def __init__(self, block_pool: BlockPool, window: int | None = None) -> None:
        self.block_pool = block_pool
        self.tables: dict[str, list[Any]] = {}
        self.window = window

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return ([block.block_id for block in self.tables.get(request_id, [])],)

    def get_computed_blocks(self, request: Request) -> tuple[list[Any], int, int]:
        hits: list[Any] = []
        for block_hash in request.block_hashes[: (len(request.tokens) - 1) // BLOCK_SIZE]:
            block = self.block_pool.by_hash.get(block_hash)
            if block is None:
                break
            hits.append(block)
        return hits, len(hits) * BLOCK_SIZE, 0

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: list[Any] | None = None,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
    ) -> list[Any] | None:
        num_processed = request.num_computed_tokens - request.num_in_flight_tokens
        self.remove_skipped_blocks(request.request_id, num_processed)
        pool, hits = self.block_pool, new_computed_blocks or []
        num_tokens = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        num_tokens += num_external_computed_tokens
        num_held = len(self.tables.get(request.request_id, [])) + len(hits)
        num_needed = max(-(-num_tokens // BLOCK_SIZE) - num_held, 0)
        if num_needed + sum(not block.ref_cnt for block in hits) > pool.get_num_free_blocks():
            return None
        pool.touch(hits)
        blocks = self._new_blocks(request.request_id, num_needed)
        self.tables.setdefault(request.request_id, []).extend([*hits, *blocks])
        return blocks

    def _new_blocks(self, request_id: str, num_blocks: int) -> list[Any]:
        """Stands for the coordinator, which has the id of the request in a variable."""
        return self.block_pool.get_new_blocks(num_blocks)

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> None:
        """There are no statistics."""

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int) -> None:
        if self.window is None:
            return
        table = self.tables.get(request_id, [])
        removed = []
        for position in range(max(0, processed_computed_tokens - self.window) // BLOCK_SIZE):
            if not table[position].is_null:
                removed.append(table[position])
                table[position] = self.block_pool.blocks[0]
        self.block_pool.free_blocks(removed)

    def cache_blocks(self, request: Request, num_computed_tokens: int) -> None:
        table = self.tables[request.request_id]
        num_cached = next(
            (
                position
                for position, block in enumerate(table)
                if block.block_hash is None and not block.is_null
            ),
            len(table),
        )
        num_full = num_computed_tokens // BLOCK_SIZE
        if num_full > num_cached:
            self.block_pool.cache_full_blocks(
                request=request,
                blocks=table,
                num_cached_blocks=num_cached,
                num_full_blocks=num_full,
                block_size=BLOCK_SIZE,
                kv_cache_group_id=0,
            )

    def free(self, request: Request) -> None:
        self.block_pool.free_blocks(reversed(self.tables.pop(request.request_id, [])))

    def pop_blocks_for_free(self, request: Request) -> list[Any]:
        return self.tables.pop(request.request_id, [])


class Scheduler:
    """Built by vLLM from its configuration, here from a few numbers."""

    num_steps_ahead = 0
    """Steps that are scheduled before the outputs of one are processed."""

    def __init__(
        self,
        *,
        num_gpu_blocks: int = 24,
        max_num_seqs: int = 4,
        budget: int = 16,
        window: int | None = None,
        max_loras: int = 0,
        encoder_budget: int = 0,
    ) -> None:
        self.lora_config = SimpleNamespace(max_loras=max_loras) if max_loras else None
        self._pause_state = PauseState.UNPAUSED
        self.connector: Any = None
        self.defer_block_free = False
        self.deferred_frees: deque[tuple[int, list[Any]]] = deque()
        self.sched_step_seq = self.processed_step_seq = 0
        self.max_num_encoder_input_tokens = encoder_budget
        self.encoder_cache_manager = SimpleNamespace(
            cache_size=encoder_budget,
            num_free_slots=encoder_budget,
            num_freeable_slots=encoder_budget,
        )
        self.finished_recving_kv_req_ids: set[str] = set()
        kind = "FullAttentionSpec" if window is None else "SlidingWindowSpec"
        full = type(kind, (), {"block_size": BLOCK_SIZE})()
        self.kv_cache_config = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=full)]
        )
        self.vllm_config = configuration(max_num_seqs, budget)
        self.vllm_config.lora_config = self.lora_config
        self.pool = BlockPool(num_gpu_blocks)
        self.scheduler_config = self.vllm_config.scheduler_config
        self.kv_cache_manager = KVCacheManager(self.pool, window)
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting = FCFSRequestQueue()
        self.kv_holding_waiting = FCFSRequestQueue()
        self.deferred_waiting: set[Request] = set()
        self.num_waiting_for_streaming_input = 0
        self.max_num_running_reqs = self.max_num_active_reqs = max_num_seqs
        self.max_num_scheduled_tokens = budget
        self.in_flight: deque[tuple[Any, dict[str, int]]] = deque()
        self.num_updates = 0
        self.num_prefill_tokens = 0
        """Of the last step whose outputs have been processed."""

    def table(self, request_id: str) -> list[int]:
        return self.kv_cache_manager.get_block_ids(request_id)[0]

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting) + len(self.kv_holding_waiting)

    def add_request(self, request: Request) -> None:
        session = self.requests.get(request.request_id)
        if session is None:
            self.requests[request.request_id] = request
            self._enqueue_waiting_request(request)
        elif session.status is not RequestStatus.WAITING_FOR_STREAMING_REQ:
            session.streaming_queue.append(request)
        elif request.resumable:
            self._update_request_as_session(session, request)
        else:
            self.finish_requests(session.request_id, RequestStatus.FINISHED_ABORTED)

    def _update_request_as_session(self, session: Request, update: Request) -> None:
        session.tokens.pop()
        session.tokens += update.tokens
        session.prompt_token_ids = list(session.tokens)
        session.num_prompt_tokens = len(session.tokens)
        session.arrival_time = update.arrival_time
        if session.status is RequestStatus.WAITING_FOR_STREAMING_REQ:
            self.num_waiting_for_streaming_input -= 1
        session.status = RequestStatus.WAITING

    def finish_requests(self, request_ids: str, finished_status: RequestStatus) -> None:
        request = self.requests[request_ids]
        self.num_waiting_for_streaming_input -= (
            request.status is RequestStatus.WAITING_FOR_STREAMING_REQ
        )
        if request in self.running:
            self.running.remove(request)
        self.waiting.remove_requests([request])
        self.kv_holding_waiting.remove_requests([request])
        self.deferred_waiting.discard(request)
        request.status = finished_status
        self._free_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        budget, has_preempted = self.max_num_scheduled_tokens, False
        scheduled: dict[str, int] = {}
        new_blocks: dict[str, list[Any]] = {}
        manager = self.kv_cache_manager
        for request in list(self.running):
            num_placeholders = request.num_output_placeholders
            chunk = min(budget, request.num_tokens + num_placeholders - request.num_computed_tokens)
            most = request.num_prompt_tokens + request.max_tokens
            is_last = num_placeholders > 0 and (
                request.num_computed_tokens + 2 - num_placeholders >= most
            )
            if not chunk or is_last or request not in self.running:
                continue
            while (blocks := manager.allocate_slots(request, chunk)) is None:
                has_preempted = True
                victim = self.running.pop()
                self._preempt_request(victim, 0.0)
                if victim is request:
                    break
            if blocks is None:
                break
            budget -= chunk
            scheduled[request.request_id] = chunk
            new_blocks[request.request_id] = blocks
        cached_ids = list(scheduled)
        new: list[Request] = []
        resumed: list[Request] = []
        if not has_preempted:
            self._admit(budget, scheduled, new, resumed)
        output = SimpleNamespace(
            scheduled_new_reqs=[
                SimpleNamespace(
                    req_id=request.request_id,
                    block_ids=(self.table(request.request_id),),
                    num_computed_tokens=request.num_computed_tokens,
                )
                for request in new
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[*cached_ids, *(request.request_id for request in resumed)],
                resumed_req_ids={request.request_id for request in resumed},
                new_block_ids=[
                    *(
                        ([block.block_id for block in new_blocks[cached_id]],)
                        if new_blocks[cached_id]
                        else None
                        for cached_id in cached_ids
                    ),
                    *((self.table(request.request_id),) for request in resumed),
                ],
                num_computed_tokens=[
                    self.requests[request_id].num_computed_tokens
                    for request_id in [*cached_ids, *(request.request_id for request in resumed)]
                ],
            ),
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={
                request.request_id: list(range(len(request.encoder_inputs)))
                for request in new
                if request.encoder_inputs
            },
            num_prefill_tokens=sum(
                chunk
                for request_id, chunk in scheduled.items()
                if (request := self.requests[request_id]).is_prefill_chunk
                or request in (*new, *resumed)
            ),
        )
        self.encoder_cache_manager.num_freeable_slots -= sum(
            sum(request.encoder_inputs) for request in new
        )
        self._update_after_schedule(output)
        return output

    def _admit(
        self, budget: int, scheduled: dict[str, int], new: list[Request], resumed: list[Request]
    ) -> None:
        """The part of vLLM's `schedule` that goes through the waiting requests."""
        manager = self.kv_cache_manager
        skipped: deque[Request] = deque()
        skipped_holding: deque[Request] = deque()
        while budget:
            queue = self.kv_holding_waiting
            if not queue and self._pause_state is PauseState.UNPAUSED:
                queue = self.waiting
            num_active = len(self.running) + self.num_waiting_for_streaming_input
            if not queue or num_active >= self.max_num_active_reqs:
                break
            request = queue.peek_request()
            if (
                not self._handle_blocked_waiting_request(request)
                or (request.num_stale_output_tokens and not request.drop_stale_output)
                or not self._has_lora_slot(request)
            ):
                self._skip(queue.pop_request(), skipped, skipped_holding)
                continue
            hits: list[Any] = []
            num_hits = num_external = 0
            is_looked_up = not request.num_computed_tokens
            if is_looked_up:
                hits, num_hits, _ = manager.get_computed_blocks(request)
                if self.connector is not None and not request.num_preemptions:
                    num_external = request.num_tokens - 1 - num_hits
            num_computed = request.num_computed_tokens + num_hits + num_external
            chunk = 0 if num_external else min(budget, request.num_tokens - num_computed)
            blocks = manager.allocate_slots(
                request,
                chunk,
                num_new_computed_tokens=num_hits,
                new_computed_blocks=hits,
                num_external_computed_tokens=num_external,
                delay_cache_blocks=num_external > 0,
            )
            if blocks is None:
                break
            if is_looked_up:
                manager.record_prefix_cache_stats(request, num_hits)
            queue.pop_request()
            request.num_computed_tokens = num_computed
            if num_external:
                request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
                self._skip(request, skipped, skipped_holding)
                continue
            self.deferred_waiting.discard(request)
            self.running.append(request)
            (new if request.status is RequestStatus.WAITING else resumed).append(request)
            request.status = RequestStatus.RUNNING
            budget -= chunk
            scheduled[request.request_id] = chunk
        self.waiting.prepend_requests(skipped)
        self.kv_holding_waiting.prepend_requests(skipped_holding)

    def _skip(
        self, request: Request, skipped: deque[Request], skipped_holding: deque[Request]
    ) -> None:
        self.deferred_waiting.add(request)
        (skipped_holding if self._holds_kv_blocks(request) else skipped).appendleft(request)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        if request.request_id in self.finished_recving_kv_req_ids:
            request.status = RequestStatus.WAITING
            self.finished_recving_kv_req_ids.remove(request.request_id)
        return not request.status.name.startswith("WAITING_FOR_")

    @staticmethod
    def _holds_kv_blocks(request: Request) -> bool:
        return request.num_computed_tokens > 0

    def _enqueue_waiting_request(self, request: Request) -> None:
        if request.status.name.startswith("WAITING_FOR_"):
            self.deferred_waiting.add(request)
        queue = self.kv_holding_waiting if self._holds_kv_blocks(request) else self.waiting
        queue.add_request(request)

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        self.sched_step_seq += 1
        for request_id, chunk in scheduler_output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            request.last_sched_seq = self.sched_step_seq
            request.num_computed_tokens += chunk
            request.num_in_flight_tokens += chunk
            num_known = request.num_tokens + request.num_output_placeholders
            request.is_prefill_chunk = request.num_computed_tokens < num_known

    def update_from_output(
        self, scheduler_output: Any, model_runner_output: dict[str, int]
    ) -> dict[int, Any]:
        self.num_updates += 1
        self.processed_step_seq += 1
        self._drain_deferred_frees()
        self.num_prefill_tokens = scheduler_output.num_prefill_tokens
        outputs = []
        continuing = []
        for request_id, chunk in scheduler_output.num_scheduled_tokens.items():
            request = self.requests.get(request_id)
            if request is None:
                continue
            request.num_in_flight_tokens -= chunk
            is_stale = request.num_stale_output_tokens > 0
            if is_stale:
                request.num_stale_output_tokens -= chunk
            token = model_runner_output.get(request_id)
            if token is None or request.is_finished() or (is_stale and request.drop_stale_output):
                continue
            request.tokens.append(token)
            if not is_stale:
                request.num_output_placeholders = max(request.num_output_placeholders - 1, 0)
                num_processed = request.num_computed_tokens - request.num_in_flight_tokens
                self.kv_cache_manager.cache_blocks(request, num_processed)
            outputs.append(SimpleNamespace(request_id=request_id, new_token_ids=[token]))
            if token in request.sampling_params.stop_token_ids:
                status, request.stop_reason = RequestStatus.FINISHED_STOPPED, token
            elif len(request.output_token_ids) == request.max_tokens:
                status = RequestStatus.FINISHED_LENGTH_CAPPED
            else:
                continue
            if request.status is RequestStatus.RUNNING:
                self.running.remove(request)
            else:
                self.waiting.remove_requests([request])
                self.deferred_waiting.discard(request)
            request.status = status
            if self._handle_stopped_request(request):
                self._free_request(request)
            else:
                continuing.append(request)
        for request in continuing:
            self._enqueue_waiting_request(request)
        return {0: SimpleNamespace(outputs=outputs)}

    def _handle_stopped_request(self, request: Request) -> bool:
        if not request.resumable:
            return True
        request.num_computed_tokens -= request.num_output_placeholders
        request.drop_stale_output = True
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0
        if request.streaming_queue:
            self._update_request_as_session(request, request.streaming_queue.popleft())
        else:
            request.status = RequestStatus.WAITING_FOR_STREAMING_REQ
            self.num_waiting_for_streaming_input += 1
        return False

    def shutdown(self) -> None:
        """There is nothing to shut down."""

    def _preempt_request(
        self, request: Request, timestamp: float, drop_stale_output: bool = False
    ) -> None:
        self._free_request_blocks(request)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        request.num_computed_tokens = request.num_output_placeholders = 0
        request.drop_stale_output = drop_stale_output
        request.num_stale_output_tokens = request.num_in_flight_tokens
        self.waiting.prepend_request(request)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> None:
        if self.connector is None:
            self._free_blocks(request)

    def _request_blocks_can_be_freed(self, request: Request) -> bool:
        return not self.defer_block_free or request.last_sched_seq <= self.processed_step_seq

    def _free_request_blocks(self, request: Request) -> None:
        if self._request_blocks_can_be_freed(request):
            self.kv_cache_manager.free(request)
            return
        blocks = self.kv_cache_manager.pop_blocks_for_free(request)
        self.deferred_frees.append((self.sched_step_seq, blocks))

    def _drain_deferred_frees(self) -> None:
        while self.deferred_frees and self.deferred_frees[0][0] <= self.processed_step_seq:
            _, blocks = self.deferred_frees.popleft()
            self.kv_cache_manager.block_pool.free_blocks(reversed(blocks))

    def _free_blocks(self, request: Request) -> None:
        self._free_request_blocks(request)
        self.encoder_cache_manager.num_freeable_slots += sum(request.encoder_inputs)
        del self.requests[request.request_id]

    def _has_lora_slot(self, request: Request) -> bool:
        if self.lora_config is None or request.lora_request is None:
            return True
        used = {
            request.lora_request.lora_int_id for request in self.running if request.lora_request
        }
        return len(used) < self.lora_config.max_loras or request.lora_request.lora_int_id in used


class AsyncScheduler(Scheduler):
    num_steps_ahead = 1

    def _update_after_schedule(self, scheduler_output: Any) -> None:
        super()._update_after_schedule(scheduler_output)
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self.requests[request_id]
            request.num_output_placeholders += not request.is_prefill_chunk


class PipelinedScheduler(AsyncScheduler):
    """An `AsyncScheduler` whose model runs in two stages."""

    num_steps_ahead = 2


OWN = {
    Request: {"tokens", "encoder_inputs"},
    FCFSRequestQueue: set(),
    BlockPool: {"free_queue", "by_hash"},
    KVCacheManager: {"tables", "window", "_new_blocks"},
    Scheduler: {
        *("num_steps_ahead", "pool", "in_flight", "num_updates", "num_prefill_tokens", "table"),
        *("_admit", "_skip", "_has_lora_slot"),
    },
    AsyncScheduler: {"num_steps_ahead"},
}
"""Attributes and methods that vLLM's classes do not have."""


def configuration(max_num_seqs: int, budget: int, rank: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            served_model_name=None,
            model="org/little",
            dtype="torch.bfloat16",
            max_model_len=128,
            skip_tokenizer_init=True,
            tokenizer="org/little",
        ),
        cache_config=SimpleNamespace(block_size=BLOCK_SIZE, enable_prefix_caching=True),
        scheduler_config=SimpleNamespace(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            enable_chunked_prefill=True,
            policy="fcfs",
            watermark=0.01,
            scheduler_cls=Scheduler,
        ),
        speculative_config=SimpleNamespace(method="ngram", num_speculative_tokens=3),
        parallel_config=SimpleNamespace(data_parallel_rank=rank, data_parallel_index=rank),
        device_config=SimpleNamespace(device_type="cpu"),
        observability_config=SimpleNamespace(cudagraph_metrics=True),
    )


def sampled(scheduler: Scheduler, output: Any) -> dict[str, int]:
    """The tokens that a model samples for a batch that has just been scheduled: 1000, 1001, …"""
    tokens = {}
    for request_id in output.num_scheduled_tokens:
        request = scheduler.requests[request_id]
        if not request.is_prefill_chunk:
            num_before = max(request.num_output_placeholders - 1, 0)
            tokens[request_id] = 1_000 + len(request.output_token_ids) + num_before
    return tokens


def step(scheduler: Scheduler) -> list[Any]:
    """Schedules a step, and processes the outputs of the oldest one that is not one ahead.

    Returns the outputs.
    """
    output = scheduler.schedule()
    scheduler.in_flight.append((output, sampled(scheduler, output)))
    if len(scheduler.in_flight) <= scheduler.num_steps_ahead:
        return []
    return list(scheduler.update_from_output(*scheduler.in_flight.popleft())[0].outputs)


def drain(scheduler: Scheduler) -> None:
    """Processes the outputs of all steps in flight, as when the next one has to wait for them."""
    while scheduler.in_flight:
        scheduler.update_from_output(*scheduler.in_flight.popleft())


def wrapped(scheduler: Scheduler) -> list[str]:
    """Methods of the scheduler or its pool that are not their classes' own."""
    return [
        name
        for owner in (scheduler, scheduler.pool, scheduler.kv_cache_manager)
        for name in vars(owner)
        if callable(getattr(type(owner), name, None))
    ]
