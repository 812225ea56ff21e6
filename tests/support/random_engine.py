"""A simulated engine that schedules a random load, and the events of its run.

The events are rich on purpose: chunked prefill, prefix hits, forks, candidates, preemption by
recomputation and by swapping, ends of every kind, aborts of running and waiting requests, text in
several scripts.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from seqtop.sequence import Logprob, SamplingParams, SequenceStatus
from seqtop.wire.messages import (
    EngineInfo,
    EngineStopped,
    Event,
    Heartbeat,
    PreemptionMode,
    RequestArrived,
    StepStats,
    WaitReason,
)
from tests.support import events
from tests.support.simulated_engine import (
    BLOCK_SIZE,
    START,
    SimulatedEngine,
    SimulatedRequest,
    SimulatedSequence,
)

WORDS = " fox| river| lantern| the| a|狐|が|住|んで| 👋🏽| שלום| said|.|\n| once| bread|é| Ω".split(
    "|"
)


@dataclass
class _Plan:
    """The planned life of a request."""

    num_wanted: int
    """Output tokens after which it ends."""
    stops: bool
    forks: bool


class RandomEngine:
    """Iterates over the events of `num_steps` steps of one incarnation under a random load.

    The same arguments give the same events.

    Args:
        load: How many requests are kept in the engine, about.
        max_running: Requests that may run at once.
        prompt: The shortest and the longest prompt, in tokens.
        output: The shortest and the longest output, in tokens.
    """

    def __init__(
        self,
        seed: int,
        num_steps: int,
        *,
        load: int = 12,
        max_running: int = 6,
        num_blocks: int = 48,
        budget: int = 64,
        prompt: tuple[int, int] = (4, 120),
        output: tuple[int, int] = (1, 90),
        incarnation: str = "one",
        start: float = START,
    ) -> None:
        self._random = random.Random(seed)
        self._num_steps = num_steps
        self._load = load
        self._prompt_lengths = prompt
        self._output_lengths = output
        self._engine = SimulatedEngine(
            events.engine_info(
                engine_id="random",
                incarnation=incarnation,
                engine="random_engine 1",
                start_time=start,
                block_size=BLOCK_SIZE,
                num_gpu_blocks=num_blocks,
                num_cpu_blocks=num_blocks,
                max_num_seqs=max_running,
                max_num_batched_tokens=budget,
                max_model_len=1024,
                preemption_mode="swap",
                heartbeat_interval=0.5,
            )
        )
        self._plans: dict[str, _Plan] = {}
        self._names = itertools.count(1)

    def info(self) -> EngineInfo:
        return self._engine.info

    def __iter__(self) -> Iterator[Event]:
        engine = self._engine
        yield engine.info
        for number in range(self._num_steps):
            yield from self._arrivals()
            yield from self._step()
            if self._random.random() < 0.02 and (requests := engine.waiting + engine.running):
                yield engine.finish(self._random.choice(requests), SequenceStatus.FINISHED_ABORTED)
            if self._random.random() < 0.02:
                engine.time += 1.0
                yield Heartbeat(time=engine.time, step=number)
        yield EngineStopped(time=engine.time, reason="the script has ended")

    def _arrivals(self) -> Iterator[RequestArrived]:
        engine, draw = self._engine, self._random
        while len(engine.waiting) + len(engine.running) < self._load and draw.random() < 0.7:
            engine.time += 0.001
            num_wanted = draw.randint(*self._output_lengths)
            prompt = [draw.randrange(1024) for _ in range(draw.randint(*self._prompt_lengths))]
            params = SamplingParams(
                temperature=draw.random(),
                max_tokens=num_wanted + 5,
                logprobs=2 if draw.random() < 0.1 else None,
                stop=["\n\n"] if draw.random() < 0.2 else None,
            )
            request, arrived = engine.arrive(
                f"req-{next(self._names)}",
                "".join(draw.choice(WORDS) for _ in prompt),
                params,
                prompt=prompt,
                priority=draw.randint(0, 2),
            )
            self._plans[request.request_id] = _Plan(
                num_wanted, draw.random() < 0.5, draw.random() < 0.1
            )
            yield arrived

    def _step(self) -> Iterator[Event]:
        engine = self._engine
        engine.begin_step(self._random.uniform(0.01, 0.05))
        chunks = self._schedule()
        figures = self._figures(chunks)
        ended: list[SimulatedRequest] = []
        for request, chunk in chunks:
            if self._run(request, chunk, figures):
                ended.append(request)
        for request in ended:
            engine.remove(request)
        figures.num_swapped = sum(request.is_swapped for request in engine.waiting)
        yield engine.end_step(figures, self._wait_reasons())
        for request in ended:
            yield engine.finish(request, self._end_of(request))

    def _schedule(self) -> list[tuple[SimulatedRequest, int]]:
        """Makes room, admits the waiting, and returns who computes how many tokens."""
        engine = self._engine
        budget = engine.info.max_num_batched_tokens or 0
        chunks: list[tuple[SimulatedRequest, int]] = []
        for request in list(engine.running):
            if request not in engine.running:  # preempted for one before it
                continue
            chunk = min(request.total - request.computed, budget)
            if chunk and self._make_room(request, chunk):
                chunks.append((request, chunk))
                budget -= chunk
        while engine.waiting and len(engine.running) < engine.info.max_num_seqs and budget:
            request = engine.waiting[0]
            if not request.computed and self._random.random() < 0.3:
                hit = (request.num_prompt - 1) // BLOCK_SIZE * BLOCK_SIZE
                request.cached = request.computed = hit
            chunk = min(request.total - request.computed, budget)
            if self._num_missing(request, chunk) > engine.num_available:
                if not request.is_swapped:
                    request.cached = request.computed = 0
                break
            engine.admit(request)
            engine.grow(request, request.computed + chunk)
            chunks.append((request, chunk))
            budget -= chunk
        return [(request, chunk) for request, chunk in chunks if request in engine.running]

    def _num_missing(self, request: SimulatedRequest, chunk: int) -> int:
        return request.blocks_for(request.computed + chunk) * len(request.seqs)

    def _make_room(self, request: SimulatedRequest, chunk: int) -> bool:
        engine = self._engine
        while self._num_missing(request, chunk) > engine.num_available:
            victim = engine.running[-1]
            engine.preempt(
                victim, request.request_id, self._random.choice(get_args(PreemptionMode))
            )
            if victim is request:
                return False
        engine.grow(request, request.computed + chunk)
        return True

    def _run(self, request: SimulatedRequest, chunk: int, figures: StepStats) -> bool:
        """Runs the part of a step of one request; returns whether it ends."""
        engine, plan = self._engine, self._plans[request.request_id]
        is_prompt = request.computed < request.total - 1 or not request.seqs[0].outputs
        samples = request.computed + chunk == request.total
        engine.schedule(request, chunk, is_prompt=is_prompt, samples=samples, times=figures)
        if samples and plan.forks:
            plan.forks = False
            if len(request.seqs[0].table) <= engine.num_available:
                engine.fork(request)
        for seq in request.seqs:
            self._sample(request, seq, samples=samples)
        return len(request.seqs[0].outputs) >= plan.num_wanted

    def _sample(self, request: SimulatedRequest, seq: SimulatedSequence, *, samples: bool) -> None:
        draw = self._random
        fields: dict[str, Any] = {}
        token = None
        if samples:
            token_id, logprob = draw.randrange(1024), -draw.random()
            token = token_id, logprob, WORDS[token_id % len(WORDS)]
            if request.params.logprobs:
                fields["top_logprobs"] = [
                    {
                        token_id: Logprob(logprob, 1, "x"),
                        token_id + 1: Logprob(logprob - 1.0, 2, None),
                    }
                ]
        num_outputs = len(seq.outputs) + samples
        end = None
        if num_outputs >= self._plans[request.request_id].num_wanted:
            end = self._end_of(request)
            if end is SequenceStatus.FINISHED_STOPPED:
                fields["stop_reason"] = draw.choice([2, "\n\n", None])
        elif draw.random() < 0.05:
            seq.is_replaced = True  # the whole table, though appending would do
        self._engine.sample(request, seq, token, end, **fields)

    def _end_of(self, request: SimulatedRequest) -> SequenceStatus:
        stops = self._plans[request.request_id].stops
        return SequenceStatus.FINISHED_STOPPED if stops else SequenceStatus.FINISHED_LENGTH_CAPPED

    def _wait_reasons(self) -> list[WaitReason]:
        engine = self._engine
        if not engine.waiting:
            return []
        head = engine.waiting[0]
        is_full = len(engine.running) >= engine.info.max_num_seqs
        return [
            events.wait_reason(
                head.request_id,
                "seq_limit" if is_full else "no_blocks",
                0 if is_full else max(1, head.blocks_for(head.total)),
            )
        ]

    def _figures(self, chunks: list[tuple[SimulatedRequest, int]]) -> StepStats:
        forward = self._random.uniform(0.005, 0.02)
        return events.stats(
            num_prefill_tokens=sum(chunk for _, chunk in chunks if chunk > 1),
            num_decode_tokens=len(chunks),
            scheduler_time=self._random.uniform(0.0001, 0.001),
            model_forward_time=forward,
            model_execute_time=forward * 1.2,
        )
