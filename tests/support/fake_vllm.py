"""A scheduler with the attributes and methods of vLLM's V1 scheduler that the adapter goes by.

It schedules for real, in little: one token budget, a pool of blocks with a null block and a
prefix cache, preemption of whoever was admitted last, a sliding window, LoRA slots, streaming
sessions, and a KV connector that loads prompts and holds the blocks of what has ended. No vLLM is
needed.
"""

from __future__ import annotations

import enum
import hashlib
import time
from collections import deque
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

BLOCK_SIZE = 4


class RequestStatus(enum.IntEnum):
    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    WAITING_FOR_REMOTE_KVS = 3
    WAITING_FOR_STREAMING_REQ = 4
    RUNNING = 5
    PREEMPTED = 6
    FINISHED_LENGTH_CAPPED = 8
    FINISHED_ABORTED = 9


class PauseState(enum.Enum):
    UNPAUSED = 0
    PAUSED_NEW = 1


class Request:
    def __init__(self, request_id: str, prompt_token_ids: list[int], max_tokens: int) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.num_prompt_tokens = len(prompt_token_ids)
        self.tokens = list(prompt_token_ids)
        self.max_tokens = max_tokens
        self.sampling_params = SimpleNamespace(max_tokens=max_tokens, temperature=0.0)
        self.arrival_time = time.time()
        self.priority = 0
        self.status = RequestStatus.WAITING
        self.stop_reason = None
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.lora_request: Any = None
        self.resumable = False
        self.encoder_inputs: list[int] = []
        self.inputs: deque[Request] = deque()

    @classmethod
    def from_engine_core_request(cls, request: Any, _block_hasher: Any = None) -> Request:
        return cls(request.request_id, request.prompt_token_ids, max_tokens=3)

    def get_num_encoder_embeds(self, input_id: int) -> int:
        return self.encoder_inputs[input_id]

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


class Queue(deque[Request]):
    def peek_request(self) -> Request:
        return self[0]

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        self.extendleft(requests)


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
        self, request: Request, blocks: list[Any], num_cached_blocks: int, num_full_blocks: int
    ) -> None:
        for position in range(num_cached_blocks, num_full_blocks):
            block = blocks[position]
            if not block.is_null:
                block.block_hash = request.block_hashes[position]
                self.by_hash.setdefault(block.block_hash, block)

    def get_num_free_blocks(self) -> int:
        return len(self.free_queue)

    def get_new_blocks(self, count: int) -> list[Any]:
        blocks = [self.free_queue.popleft() for _ in range(count)]
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

    def touch(self, blocks: list[Any]) -> None:
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
    """The manager of a `Scheduler`, which has its tables."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.block_pool = scheduler.pool
        self._scheduler = scheduler

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return (self._scheduler.table(request_id),)

    def get_computed_blocks(self, request: Request) -> tuple[list[Any], int]:
        hits = self._scheduler.hits(request)
        return hits, len(hits) * BLOCK_SIZE

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
    ) -> list[Any] | None:
        self.remove_skipped_blocks(request.request_id)
        return self._scheduler.allocate(request, num_new_tokens)

    def remove_skipped_blocks(self, request_id: str) -> None:
        scheduler = self._scheduler
        if scheduler.window is None:
            return
        num_computed = scheduler.requests[request_id].num_computed_tokens
        table = scheduler.tables.get(request_id, [])
        removed = []
        for position in range(max(0, num_computed - scheduler.window) // BLOCK_SIZE):
            if not table[position].is_null:
                removed.append(table[position])
                table[position] = self.block_pool.blocks[0]
        self.block_pool.free_blocks(removed)


class Scheduler:
    """Built by vLLM from its configuration, here from a few numbers."""

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
        self.window = window
        self.lora_config = SimpleNamespace(max_loras=max_loras) if max_loras else None
        self._pause_state = PauseState.UNPAUSED
        self.connector: Any = None
        self.max_num_encoder_input_tokens = encoder_budget
        self.encoder_cache_manager = SimpleNamespace(
            cache_size=encoder_budget,
            num_free_slots=encoder_budget,
            num_freeable_slots=encoder_budget,
        )
        self.finished_recving: set[str] = set()
        kind = "FullAttentionSpec" if window is None else "SlidingWindowSpec"
        full = type(kind, (), {"block_size": BLOCK_SIZE})()
        self.kv_cache_config = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=full)]
        )
        self.vllm_config = configuration(max_num_seqs, budget)
        self.vllm_config.lora_config = self.lora_config
        self.pool = BlockPool(num_gpu_blocks)
        self.scheduler_config = self.vllm_config.scheduler_config
        self.kv_cache_manager = KVCacheManager(self)
        self.requests: dict[str, Request] = {}
        self.waiting, self.running = Queue(), list[Request]()
        self.skipped_waiting = Queue()
        self.tables: dict[str, list[Any]] = {}
        self.max_num_running_reqs, self.max_num_scheduled_tokens = max_num_seqs, budget

    def table(self, request_id: str) -> list[int]:
        return [block.block_id for block in self.tables.get(request_id, [])]

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting) + len(self.skipped_waiting)

    def add_request(self, request: Request) -> None:
        if session := self.requests.get(request.request_id):
            if session.status is not RequestStatus.WAITING_FOR_STREAMING_REQ:
                session.inputs.append(request)
            elif request.resumable:
                self._update_request_as_session(session, request)
            else:
                self.finish_requests(session.request_id, RequestStatus.FINISHED_ABORTED)
            return
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def _update_request_as_session(self, session: Request, update: Request) -> None:
        del session.tokens[session.num_computed_tokens :]
        session.tokens += update.tokens
        session.prompt_token_ids = list(session.tokens)
        session.num_prompt_tokens = len(session.tokens)
        session.status = RequestStatus.WAITING

    def finish_requests(self, request_id: str, status: RequestStatus) -> None:
        request = self.requests[request_id]
        for queue in (self.running, self.waiting, self.skipped_waiting):
            if request in queue:
                queue.remove(request)
        request.status = status
        self._free_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        budget, has_preempted = self.max_num_scheduled_tokens, False
        scheduled, new_blocks = {}, {}
        manager = self.kv_cache_manager
        for request in list(self.running):
            if request not in self.running:
                continue
            chunk = min(budget, len(request.tokens) - request.num_computed_tokens)
            while (blocks := manager.allocate_slots(request, chunk)) is None:
                has_preempted = True
                victim = self.running.pop()
                self._preempt_request(victim, 0.0)
                if victim is request:
                    break
            if blocks is None or not chunk:
                continue
            budget -= chunk
            scheduled[request.request_id] = chunk
            new_blocks[request.request_id] = blocks
        cached_ids = list(scheduled)
        new: list[Any] = []
        resumed: list[Any] = []
        self.waiting.extendleft(reversed(self.skipped_waiting))
        self.skipped_waiting.clear()
        skipped: deque[Request] = deque()
        if self._pause_state is not PauseState.UNPAUSED:
            budget = 0
        while (
            not has_preempted
            and budget
            and self.waiting
            and len(self.running) < self.max_num_running_reqs
        ):
            request = self.waiting[0]
            if request.request_id in self.finished_recving:
                request.status = RequestStatus.WAITING
                self.finished_recving.remove(request.request_id)
            if request.status.name.startswith("WAITING_FOR_") or not self._has_lora_slot(request):
                skipped.appendleft(self.waiting.popleft())
                continue
            if not request.num_computed_tokens:
                hits, num_hits = manager.get_computed_blocks(request)
                self.pool.touch(hits)
                self.tables[request.request_id] = hits
                request.num_computed_tokens = num_hits
                is_loaded = self.connector is not None and not request.num_preemptions
                if is_loaded and manager.allocate_slots(
                    request,
                    len(request.tokens),
                    num_external_computed_tokens=len(request.tokens) - 1 - num_hits,
                    delay_cache_blocks=True,
                ):
                    request.num_computed_tokens = len(request.tokens) - 1
                    request.status = RequestStatus.WAITING_FOR_REMOTE_KVS
                    skipped.appendleft(self.waiting.popleft())
                    continue
            chunk = min(budget, len(request.tokens) - request.num_computed_tokens)
            if manager.allocate_slots(request, chunk) is None:
                self._give_back(request)
                request.num_computed_tokens = 0
                break
            self.waiting.popleft()
            self.running.append(request)
            (new if request.status is RequestStatus.WAITING else resumed).append(request)
            request.status = RequestStatus.RUNNING
            budget -= chunk
            scheduled[request.request_id] = chunk
        self.skipped_waiting.prepend_requests(skipped)
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
        )
        self.encoder_cache_manager.num_freeable_slots -= sum(
            sum(request.encoder_inputs) for request in new
        )
        for request_id, chunk in scheduled.items():
            self.requests[request_id].num_computed_tokens += chunk
        return output

    def update_from_output(self, scheduler_output: Any, sampled: dict[str, int]) -> dict[int, Any]:
        outputs = []
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request is None or request.num_computed_tokens < len(request.tokens):
                continue
            request.tokens.append(sampled[request_id])
            self._hash(request)
            outputs.append(
                SimpleNamespace(request_id=request_id, new_token_ids=[sampled[request_id]])
            )
            if len(request.tokens) == request.num_prompt_tokens + request.max_tokens:
                self.running.remove(request)
                if request.resumable:
                    self.waiting.append(request)
                    request.status = RequestStatus.WAITING_FOR_STREAMING_REQ
                    if request.inputs:
                        self._update_request_as_session(request, request.inputs.popleft())
                    continue
                request.status = RequestStatus.FINISHED_LENGTH_CAPPED
                self._free_request(request)
        return {0: SimpleNamespace(outputs=outputs)}

    def shutdown(self) -> None:
        """There is nothing to shut down."""

    def allocate(self, request: Request, chunk: int) -> list[Any] | None:
        table = self.tables.setdefault(request.request_id, [])
        needed = -(-(request.num_computed_tokens + chunk) // BLOCK_SIZE) - len(table)
        if needed > self.pool.get_num_free_blocks():
            return None
        blocks = self._new_blocks(request.request_id, max(0, needed))
        table += blocks
        return blocks

    def _new_blocks(self, request_id: str, count: int) -> list[Any]:
        return self.pool.get_new_blocks(count)

    def hits(self, request: Request) -> list[Any]:
        hits: list[Any] = []
        for block_hash in request.block_hashes[: (len(request.tokens) - 1) // BLOCK_SIZE]:
            block = self.pool.by_hash.get(block_hash)
            if block is None:
                break
            hits.append(block)
        return hits

    def _hash(self, request: Request) -> None:
        table = self.tables[request.request_id]
        num_cached = next(
            (
                position
                for position, block in enumerate(table)
                if block.block_hash is None and not block.is_null
            ),
            len(table),
        )
        num_full = request.num_computed_tokens // BLOCK_SIZE
        if num_full > num_cached:
            self.pool.cache_full_blocks(
                request=request,
                blocks=table,
                num_cached_blocks=num_cached,
                num_full_blocks=num_full,
            )

    def _give_back(self, request: Request) -> None:
        self.pool.free_blocks(reversed(self.tables.pop(request.request_id, [])))

    def _preempt_request(self, request: Request, timestamp: float) -> None:
        self._give_back(request)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        request.num_computed_tokens = 0
        self.waiting.appendleft(request)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> None:
        if self.connector is None:
            self._free_blocks(request)

    def _free_blocks(self, request: Request) -> None:
        self._give_back(request)
        self.encoder_cache_manager.num_freeable_slots += sum(request.encoder_inputs)
        del self.requests[request.request_id]

    def _has_lora_slot(self, request: Request) -> bool:
        if self.lora_config is None or request.lora_request is None:
            return True
        used = {
            request.lora_request.lora_int_id for request in self.running if request.lora_request
        }
        return len(used) < self.lora_config.max_loras or request.lora_request.lora_int_id in used


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


def step(scheduler: Scheduler) -> Any:
    output = scheduler.schedule()
    sampled = {
        num_scheduled_token: 1000 + len(num_scheduled_token)
        for num_scheduled_token in output.num_scheduled_tokens
    }
    return scheduler.update_from_output(output, sampled)


def wrapped(scheduler: Scheduler) -> list[str]:
    """Methods of the scheduler or its pool that are not their classes' own."""
    return [
        name
        for owner in (scheduler, scheduler.pool, scheduler.kv_cache_manager)
        for name in vars(owner)
        if callable(getattr(type(owner), name, None))
    ]
