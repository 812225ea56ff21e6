"""A scheduler with the attributes and methods of vLLM's V1 scheduler that the adapter goes by.

It schedules for real, in little: one token budget, a pool of blocks with a null block and a
prefix cache, preemption of whoever was admitted last. No vLLM is needed.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

BLOCK_SIZE = 4


class RequestStatus(enum.IntEnum):
    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    RUNNING = 5
    PREEMPTED = 6
    FINISHED_LENGTH_CAPPED = 8
    FINISHED_ABORTED = 9


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


class Queue(deque[Request]):
    def peek_request(self) -> Request:
        return self[0]


class BlockPool:
    def __init__(self, num_gpu_blocks: int) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.blocks: list[Any] = [
            SimpleNamespace(block_id=number, ref_cnt=0, block_hash=None, is_null=number == 0)
            for number in range(num_gpu_blocks)
        ]
        self.free_queue = deque(self.blocks[1:])
        self.by_hash: dict[Any, Any] = {}

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
            block.ref_cnt -= 1
            if not block.ref_cnt:
                self.free_queue.append(block)

    def reset_prefix_cache(self) -> bool:
        self.by_hash.clear()
        for block in self.blocks:
            block.block_hash = None
        return True


class Scheduler:
    """Built by vLLM from its configuration, here from a few numbers."""

    def __init__(
        self, *, num_gpu_blocks: int = 24, max_num_seqs: int = 4, budget: int = 16
    ) -> None:
        full = type("FullAttentionSpec", (), {"block_size": BLOCK_SIZE})()
        self.kv_cache_config = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=full)]
        )
        self.vllm_config = configuration(max_num_seqs, budget)
        self.pool = BlockPool(num_gpu_blocks)
        self.kv_cache_manager = SimpleNamespace(
            block_pool=self.pool, get_block_ids=lambda request_id: (self.table(request_id),)
        )
        self.requests: dict[str, Request] = {}
        self.waiting, self.running = Queue(), list[Request]()
        self.deferred_waiting: set[Request] = set()
        self.tables: dict[str, list[Any]] = {}
        self.max_num_seqs, self.budget = max_num_seqs, budget

    def table(self, request_id: str) -> list[int]:
        return [block.block_id for block in self.tables.get(request_id, [])]

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def finish_requests(self, request_id: str, status: RequestStatus) -> None:
        request = self.requests[request_id]
        queue = self.running if request.status is RequestStatus.RUNNING else self.waiting
        queue.remove(request)
        request.status = status
        self._free_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        budget, scheduled, new_blocks, has_preempted = self.budget, {}, {}, False
        for request in list(self.running):
            if request not in self.running:
                continue
            chunk = min(budget, len(request.tokens) - request.num_computed_tokens)
            while (blocks := self._allocate(request, chunk)) is None:
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
        while not has_preempted and self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            if request.status not in (RequestStatus.WAITING, RequestStatus.PREEMPTED) or not budget:
                break
            hits = self._hits(request)
            self.pool.touch(hits)
            self.tables[request.request_id] = hits
            request.num_computed_tokens = len(hits) * BLOCK_SIZE
            chunk = min(budget, len(request.tokens) - request.num_computed_tokens)
            if self._allocate(request, chunk) is None:
                self._give_back(request)
                request.num_computed_tokens = 0
                break
            self.waiting.popleft()
            self.running.append(request)
            (new if request.status is RequestStatus.WAITING else resumed).append(request)
            request.status = RequestStatus.RUNNING
            budget -= chunk
            scheduled[request.request_id] = chunk
        output = SimpleNamespace(
            scheduled_new_reqs=[
                SimpleNamespace(
                    req_id=each.request_id,
                    block_ids=(self.table(each.request_id),),
                    num_computed_tokens=each.num_computed_tokens,
                )
                for each in new
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[*cached_ids, *(each.request_id for each in resumed)],
                resumed_req_ids={each.request_id for each in resumed},
                new_block_ids=[
                    *(
                        ([block.block_id for block in new_blocks[each]],)
                        if new_blocks[each]
                        else None
                        for each in cached_ids
                    ),
                    *((self.table(each.request_id),) for each in resumed),
                ],
                num_computed_tokens=[
                    self.requests[each].num_computed_tokens
                    for each in [*cached_ids, *(each.request_id for each in resumed)]
                ],
            ),
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_spec_decode_tokens={},
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
                request.status = RequestStatus.FINISHED_LENGTH_CAPPED
                self._free_request(request)
        return {0: SimpleNamespace(outputs=outputs)}

    def shutdown(self) -> None:
        """There is nothing to shut down."""

    def _allocate(self, request: Request, chunk: int) -> list[Any] | None:
        table = self.tables.setdefault(request.request_id, [])
        needed = -(-(request.num_computed_tokens + chunk) // BLOCK_SIZE) - len(table)
        if needed > self.pool.get_num_free_blocks():
            return None
        blocks = self.pool.get_new_blocks(max(0, needed))
        table += blocks
        return blocks

    def _hits(self, request: Request) -> list[Any]:
        hits: list[Any] = []
        for end in range(BLOCK_SIZE, len(request.tokens), BLOCK_SIZE):
            block = self.pool.by_hash.get(tuple(request.tokens[:end]))
            if block is None:
                break
            hits.append(block)
        return hits

    def _hash(self, request: Request) -> None:
        for position, block in enumerate(self.tables[request.request_id]):
            end = (position + 1) * BLOCK_SIZE
            if block.block_hash is None and end <= request.num_computed_tokens:
                block.block_hash = tuple(request.tokens[:end])
                self.pool.by_hash.setdefault(block.block_hash, block)

    def _give_back(self, request: Request) -> None:
        self.pool.free_blocks(reversed(self.tables.pop(request.request_id, [])))

    def _preempt_request(self, request: Request, timestamp: float) -> None:
        self._give_back(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        self.waiting.appendleft(request)

    def _free_request(self, request: Request, delay_free_blocks: bool = False) -> None:
        self._give_back(request)
        del self.requests[request.request_id]


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
        ),
        parallel_config=SimpleNamespace(data_parallel_rank=rank, data_parallel_index=rank),
        device_config=SimpleNamespace(device_type="cpu"),
    )


def step(scheduler: Scheduler) -> Any:
    output = scheduler.schedule()
    sampled = {each: 1000 + len(each) for each in output.num_scheduled_tokens}
    return scheduler.update_from_output(output, sampled)


def wrapped(scheduler: Scheduler) -> list[str]:
    """Methods of the scheduler or its pool that are not their classes' own."""
    return [
        name
        for owner in (scheduler, scheduler.pool)
        for name in vars(owner)
        if callable(getattr(type(owner), name, None))
    ]
