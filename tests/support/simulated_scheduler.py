"""A scheduler of continuous batching without a model, whose faults tests choose.

It admits requests in the order of its queue, computes prompts in chunks and one token a decode,
preempts the latest request when blocks are missing, and publishes steps without
`SequenceGroupMetadata`. A test overrides a method, or sets what the next steps report.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from seqtop.sequence import RequestMetrics, SamplingParams, SequenceStatus
from seqtop.state.wait_causes import SESSION_INPUT
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import (
    Chunk,
    EngineInfo,
    Event,
    Heartbeat,
    Preemption,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
    StepStats,
    StreamingUpdate,
    WaitCause,
    WaitReason,
)
from tests.support.events import engine_info, stats

LENGTH, ABORTED = SequenceStatus.FINISHED_LENGTH_CAPPED, SequenceStatus.FINISHED_ABORTED
WAITING = SequenceStatus.WAITING
REMOTE = "WAITING_FOR_REMOTE_KVS"


@dataclasses.dataclass(eq=False)
class SimulatedRequest:
    """A request of the scheduler."""

    name: str
    seq_id: int
    num_prompt: int
    max_tokens: int
    arrival: float
    priority: int = 0
    lora: str = ""
    status: str = ""
    """The engine's own status, with which it waits for something other than its turn."""
    num_encoder_inputs: int = 0
    keeps_blocks: bool = False
    """True if its blocks stay after its end, until `release`."""
    is_session: bool = False
    """True if it waits for its client instead of ending, until `feed`."""
    num_computed: int = 0
    num_output: int = 0
    num_loaded: int = 0
    """Tokens that a connector loads."""
    table: list[int] = dataclasses.field(default_factory=list)
    window: list[int] = dataclasses.field(default_factory=list)
    """The table of a second KV-cache group."""
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None

    @property
    def num_tokens(self) -> int:
        return self.num_prompt + self.num_output

    def metrics(self) -> RequestMetrics:
        queued = None if self.first_scheduled is None else self.first_scheduled - self.arrival
        last = self.arrival if self.last_token is None else self.last_token
        return RequestMetrics(
            self.arrival, last, self.first_scheduled, self.first_token, queued, self.finished
        )


class SimulatedScheduler:
    """The scheduler; `events` has all that it published.

    Args:
        settings: Fields of its `EngineInfo`.
    """

    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {
            "start_time": 1000.0,
            "num_gpu_blocks": 200,
            "max_num_batched_tokens": 256,
            "max_model_len": 8192,
            "enable_prefix_caching": False,
            "queue_order": "fcfs",
        }
        self.info: EngineInfo = engine_info(**(defaults | settings))
        self.events: list[Event] = [self.info]
        self.now, self.number, self.num_preemptions, self.num_ids = 1000.0, 0, 0, 0
        self.free = list(range(self.info.num_reserved_blocks, self.info.num_gpu_blocks))
        self.waiting: list[SimulatedRequest] = []
        self.running: list[SimulatedRequest] = []
        self.pinned: list[SimulatedRequest] = []
        self.idle_sessions: list[SimulatedRequest] = []
        self.changed: list[SimulatedRequest] = []
        """Waiting requests whose status, table or computed tokens the next step reports."""
        self.released: list[SimulatedRequest] = []

    # --- From outside

    def add(self, name: str, prompt: int, output: int, **fields: Any) -> SimulatedRequest:
        """Announces a request."""
        self.num_ids += 1
        request = SimulatedRequest(name, self.num_ids, prompt, output, self.now, **fields)
        self.waiting.append(request)
        tokens = [5 + (sum(map(ord, name)) * 31 + index * 7) % 30_000 for index in range(prompt)]
        self.events.append(
            RequestArrived(
                request_id=name,
                arrival_time=self.now,
                seq_ids=[request.seq_id],
                num_prompt_tokens=prompt,
                prompt_token_ids=Ints.of(tokens),
                sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
                priority=request.priority,
                lora=request.lora,
                engine_status=request.status,
                num_encoder_inputs=request.num_encoder_inputs,
                metrics=request.metrics(),
            )
        )
        return request

    def abort(self, request: SimulatedRequest) -> None:
        """Ends a request from outside."""
        for queue in (self.waiting, self.running, self.idle_sessions):
            if request in queue:
                queue.remove(request)
        self.free += request.table
        request.table = []
        self._finish(request, ABORTED)

    def feed(self, request: SimulatedRequest, prompt: int, output: int) -> None:
        """Gives an idle session more input; its last token is no part of it."""
        self.idle_sessions.remove(request)
        request.num_prompt = request.num_tokens - 1 + prompt
        request.num_output, request.max_tokens = 0, output
        self.events.append(
            StreamingUpdate(
                request_id=request.name,
                time=self.now,
                num_computed_tokens=request.num_computed,
                num_prompt_tokens=request.num_prompt,
            )
        )
        self.waiting.append(request)

    def load(self, request: SimulatedRequest, num_blocks: int) -> None:
        """Gives a waiting request blocks, into which a connector loads its KV cache."""
        request.table = [self.free.pop(0) for _ in range(num_blocks)]
        tokens = min(request.num_prompt - 1, num_blocks * self.info.block_size)
        request.num_loaded = request.num_computed = tokens
        self.changed.append(request)

    def park(self, request: SimulatedRequest, status: str) -> None:
        """Changes what a waiting request waits for; empty for its turn."""
        request.status = status
        self.changed.append(request)

    def release(self, request: SimulatedRequest) -> None:
        """Frees the blocks of a request that has ended, as a connector does after it sent them."""
        self.released.append(request)

    def idle(self, seconds: int) -> None:
        """Sends heartbeats only."""
        for _ in range(seconds):
            self.now += 1.0
            self.events.append(Heartbeat(self.now, self.number - 1))

    def steps(self, number: int, gap: float = 0.0005) -> None:
        """Runs steps, `gap` seconds apart."""
        for _ in range(number):
            self.step(gap)

    def run_out(self) -> None:
        """Runs until all requests have ended."""
        while self.running or self.waiting:
            self.step()

    # --- Policy

    def admits(
        self, request: SimulatedRequest, budget: int, left: int
    ) -> tuple[WaitCause, int, bool] | None:
        """Returns the cause to leave a request waiting, what is missing, and whether others follow.

        Args:
            request: The request.
            budget: The tokens that the step may still compute.
            left: The blocks that it may still give.
        """
        if len(self.running) + len(self.idle_sessions) >= self.info.max_num_seqs:
            return "seq_limit", 1, False
        if budget <= 0:
            return "token_budget", 1, False
        missing = self.needed(request, request.num_tokens) - left
        return ("no_blocks", missing, False) if missing > 0 else None

    def seconds(self, prefill: int, decode: int) -> float:
        """Returns the time that a step takes."""
        return 0.01 + 0.0002 * (prefill + decode)

    def figures(self) -> dict[str, Any]:
        """Returns further figures of a step."""
        return {}

    def sorted_queue(self) -> list[SimulatedRequest]:
        """Returns the waiting requests in the order in which they are examined."""
        return [*self.waiting]

    def may_run(self, request: SimulatedRequest) -> bool:
        """Returns whether a running request is scheduled."""
        return True

    def needed(self, request: SimulatedRequest, num_tokens: int) -> int:
        """Returns the blocks that a request lacks for `num_tokens`."""
        return max(-(-num_tokens // self.info.block_size) - len(request.table), 0)

    # --- A step

    def step(self, gap: float = 0.0005) -> None:
        """Runs and publishes a step, `gap` seconds after the one before."""
        self.now += gap
        start, budget = self.now, self.info.max_num_batched_tokens or 0
        updates, preemptions = self._changes(), list[Preemption]()
        batch: dict[SimulatedRequest, int] = {}
        left = len(self.free)
        for request in [*self.running]:
            chunk = min(request.num_tokens - request.num_computed, budget)
            if request not in self.running or chunk <= 0 or not self.may_run(request):
                continue
            while self.needed(request, request.num_computed + chunk) > left:
                victim = self.running[-1]
                left += len(victim.table)
                if victim in batch:
                    before = victim.num_computed + batch[victim]
                    left += self.needed(victim, before)
                    budget += batch.pop(victim)
                updates.append(self._preempt(victim, request, preemptions))
                if victim is request:
                    break
            if request in self.running:
                left -= self.needed(request, request.num_computed + chunk)
                batch[request], budget = chunk, budget - chunk
        reasons = self._admit(batch, budget, left) if not preemptions else self._left_waiting()
        ran = {own.seq_id for own in batch}
        updates = [update for update in updates if update.seq_id not in ran]
        is_prompt = {own: own.num_computed < own.num_prompt for own in batch}
        prefill = sum(chunk for own, chunk in batch.items() if is_prompt[own])
        decode = sum(batch.values()) - prefill
        self.now += self.seconds(prefill, decode)
        ended: list[SimulatedRequest] = []
        metrics: dict[str, RequestMetrics] = {}
        for request, chunk in batch.items():
            updates.append(self._advance(request, chunk, is_prompt[request], start, ended, metrics))
        for request in ended:
            self.running.remove(request)
            if request.is_session:
                self.idle_sessions.append(request)
            elif request.keeps_blocks:
                self.pinned.append(request)
            else:
                self.free += request.table
                request.table = []
        used = self.info.num_gpu_blocks - self.info.num_reserved_blocks - len(self.free)
        duration = self.now - start
        figures = stats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            num_used_blocks=used,
            num_free_blocks=len(self.free),
            num_cached_blocks=None,
            num_prefill_tokens=prefill,
            num_decode_tokens=decode,
            num_preemptions=self.num_preemptions,
            scheduler_time=duration * 0.05,
            model_forward_time=None,
            model_execute_time=duration * 0.9,
        )
        figures = msgspec.structs.replace(figures, **self.figures())
        self._publish(start, updates, figures, metrics, preemptions, reasons)
        for request in [*ended, *self.released]:
            if request in self.released or not (request.keeps_blocks or request.is_session):
                self._finish(request, LENGTH)
        self.released = []

    def _publish(
        self,
        start: float,
        updates: list[SequenceUpdate],
        figures: StepStats,
        metrics: dict[str, RequestMetrics],
        preemptions: list[Preemption],
        reasons: list[WaitReason],
    ) -> None:
        step = Step(
            step=self.number,
            start_time=start,
            time=self.now,
            execute=None,
            sequences=updates,
            stats=figures,
            metrics=metrics,
            preemptions=preemptions,
            wait_reasons=reasons,
        )
        self.events.append(step)
        self.number += 1

    def _changes(self) -> list[SequenceUpdate]:
        """Returns the updates of requests that changed without running."""
        updates = [
            SequenceUpdate(
                request.seq_id,
                status=WAITING,
                num_computed_tokens=request.num_computed,
                num_cached_tokens=request.num_loaded,
                num_external_tokens=request.num_loaded,
                block_table=[*request.table],
                engine_status=request.status,
                request_id=request.name,
            )
            for request in dict.fromkeys(self.changed)
        ]
        self.changed = []
        for request in self.released:
            self.pinned.remove(request)
            self.free += request.table
            request.table = []
            updates.append(SequenceUpdate(request.seq_id, block_table=[], request_id=request.name))
        return updates

    def _admit(
        self, batch: dict[SimulatedRequest, int], budget: int, left: int
    ) -> list[WaitReason]:
        reasons: list[WaitReason] = []
        for request in self.sorted_queue():
            if request.status:
                continue
            if (blocked := self.admits(request, budget, left)) is not None:
                cause, missing, goes_on = blocked
                reasons.append(WaitReason(request.name, cause, missing))
                if goes_on:
                    continue
                break
            self.waiting.remove(request)
            self.running.append(request)
            chunk = min(request.num_tokens - request.num_computed, budget)
            if chunk > 0:
                batch[request], budget = chunk, budget - chunk
                left -= self.needed(request, request.num_computed + chunk)
        return reasons

    def _left_waiting(self) -> list[WaitReason]:
        return [WaitReason(self.waiting[0].name, "no_blocks", 1)] if self.waiting else []

    def _preempt(
        self, victim: SimulatedRequest, request: SimulatedRequest, preemptions: list[Preemption]
    ) -> SequenceUpdate:
        preemptions.append(Preemption(victim.name, "recompute", victim.num_computed, request.name))
        self.free += victim.table
        victim.table, victim.num_computed = [], 0
        self.num_preemptions += 1
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        return SequenceUpdate(
            victim.seq_id,
            status=WAITING,
            num_computed_tokens=0,
            block_table=[],
            engine_status="PREEMPTED",
            request_id=victim.name,
        )

    def _advance(
        self,
        request: SimulatedRequest,
        chunk: int,
        is_prompt: bool,
        start: float,
        ended: list[SimulatedRequest],
        metrics: dict[str, RequestMetrics],
    ) -> SequenceUpdate:
        before = request.num_computed
        blocks = [self.free.pop(0) for _ in range(self.needed(request, before + chunk))]
        request.num_computed += chunk
        request.table += blocks
        update = SequenceUpdate(
            request.seq_id,
            new_token_ids=[],
            new_blocks=blocks,
            request_id=request.name,
            chunk=Chunk(chunk, before, is_prompt),
        )
        if request.first_scheduled is None:
            request.first_scheduled, metrics[request.name] = start, request.metrics()
        if request.num_computed >= request.num_tokens:
            update.new_token_ids = [self.sample(request)]
            request.num_output += 1
            request.last_token = self.now
            if request.first_token is None:
                request.first_token, metrics[request.name] = self.now, request.metrics()
        if request.num_output >= request.max_tokens and request.is_session:
            ended.append(request)
            update.status, update.engine_status = WAITING, SESSION_INPUT
        elif request.num_output >= request.max_tokens:
            ended.append(request)
            update.status = LENGTH
            request.finished = self.now
            metrics[request.name] = request.metrics()
            if not request.keeps_blocks:
                update.block_table = []
        return update

    def sample(self, request: SimulatedRequest) -> int:
        """Returns the next token of a request."""
        return 5 + (request.seq_id * 17 + request.num_output * 13) % 30_000

    def _finish(self, request: SimulatedRequest, status: SequenceStatus) -> None:
        if request.finished is None:
            request.finished = self.now
        self.events.append(RequestFinished(request.name, self.now, status, request.metrics()))
