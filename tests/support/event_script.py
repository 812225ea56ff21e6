"""A seeded engine on paper: keeps an engine's books and tells what it does as valid events.

Rich on purpose: chunked prefill, prefix hits, forks, candidates, preemption by recomputation and
by swapping, ends of every kind, aborts of the running and the waiting, text in several scripts.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

from seqtop.sequence import (
    ExecuteModelRequest,
    Logprob,
    RequestMetrics,
    SamplingParams,
    SequenceData,
    SequenceDataDelta,
    SequenceGroupMetadata,
    SequenceGroupMetadataDelta,
    SequenceStage,
    SequenceStatus,
)
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import (
    CachedBlocks,
    EngineInfo,
    EngineStopped,
    Event,
    Heartbeat,
    Preemption,
    PreemptionMode,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
    StepStats,
    WaitReason,
)
from tests.support import events

BLOCK_SIZE = 16
START = 1_700_000_000.0
WORDS = " fox| river| lantern| the| a|狐|が|住|んで| 👋🏽| שלום| said|.|\n| once| bread|é| Ω".split(
    "|"
)


@dataclass
class Seq:
    """One sequence of a request, as the engine itself knows it."""

    seq_id: int
    outputs: list[int] = field(default_factory=list)
    logprob: float = 0.0
    table: list[int] = field(default_factory=list)
    unsent: list[int] = field(default_factory=list)
    """Blocks of `table` that are not published yet."""


@dataclass
class Job:
    """One request and how far it has come."""

    request_id: str
    prompt: list[int]
    params: SamplingParams
    metrics: RequestMetrics
    seqs: list[Seq]
    num_wanted: int
    """Output tokens after which it ends."""
    stops: bool
    num_forks: int = 0
    computed: int = 0
    cached: int = 0
    known: bool = False
    """Whether the worker holds it, so that deltas do."""
    swapped: bool = False
    resumed: bool = False
    """Whether it has been admitted in this very step."""

    @property
    def total(self) -> int:
        return len(self.prompt) + len(self.seqs[0].outputs)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that each sequence lacks to hold so many tokens."""
        return -(-num_tokens // BLOCK_SIZE) - len(self.seqs[0].table)


class EventScript:
    """Plays `num_steps` steps of one incarnation of an engine under a random load.

    The same arguments give the same events.

    Args:
        load: How many requests are kept in the engine, about.
        max_running: Requests that may run at once.
        output: Shortest and longest output, in tokens.
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
        self._max_running = max_running
        self._num_blocks = num_blocks
        self._budget = budget
        self._prompt_lengths = prompt
        self._output_lengths = output
        self._incarnation = incarnation
        self._free = list(range(num_blocks))
        self._known: set[int] = set()
        """Blocks that the prefix cache knows."""
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._names = itertools.count(1)
        self._seq_ids = itertools.count(1)
        self._num_preemptions = self._queries = self._hits = 0
        self._start = self._time = start

    def __iter__(self) -> Iterator[Event]:
        yield self.info()
        for number in range(self._num_steps):
            yield from self._arrivals()
            yield from self._step(number)
            if self._random.random() < 0.02:
                yield from self._abort()
            if self._random.random() < 0.02:
                self._time += 1.0
                yield Heartbeat(time=self._time, step=number)
        yield EngineStopped(time=self._time, reason="the script has ended")

    def info(self) -> EngineInfo:
        return events.engine_info(
            engine_id="script",
            incarnation=self._incarnation,
            engine="event_script 1",
            model="none",
            dtype="float32",
            device="cpu",
            start_time=self._start,
            block_size=BLOCK_SIZE,
            num_gpu_blocks=self._num_blocks,
            num_cpu_blocks=self._num_blocks,
            max_num_seqs=self._max_running,
            max_num_batched_tokens=self._budget,
            max_model_len=1024,
            enable_chunked_prefill=True,
            enable_prefix_caching=True,
            preemption_mode="swap",
            heartbeat_interval=0.5,
        )

    def _arrivals(self) -> Iterator[RequestArrived]:
        while len(self._waiting) + len(self._running) < self._load and self._random.random() < 0.7:
            self._time += 0.001
            job = self._new_job()
            self._waiting.append(job)
            yield RequestArrived(
                request_id=job.request_id,
                arrival_time=self._time,
                seq_ids=[job.seqs[0].seq_id],
                num_prompt_tokens=len(job.prompt),
                prompt=self._text(len(job.prompt)),
                prompt_token_ids=Ints.of(job.prompt),
                sampling_params=job.params,
                priority=self._random.randint(0, 2),
            )

    def _new_job(self) -> Job:
        draw = self._random
        num_wanted = draw.randint(*self._output_lengths)
        return Job(
            request_id=f"req-{next(self._names)}",
            prompt=[draw.randrange(1024) for _ in range(draw.randint(*self._prompt_lengths))],
            params=SamplingParams(
                temperature=draw.random(),
                max_tokens=num_wanted + 5,
                logprobs=2 if draw.random() < 0.1 else None,
                stop=["\n\n"] if draw.random() < 0.2 else None,
            ),
            metrics=RequestMetrics(self._time, self._time, None, None, None),
            seqs=[Seq(next(self._seq_ids))],
            num_wanted=num_wanted,
            stops=draw.random() < 0.5,
            num_forks=1 if draw.random() < 0.1 else 0,
        )

    def _step(self, number: int) -> Iterator[Event]:
        start, self._time = self._time, self._time + self._random.uniform(0.01, 0.05)
        self._updates: list[SequenceUpdate] = []
        self._preempted: list[Preemption] = []
        self._swapped_out: list[tuple[int, int]] = []
        self._swapped_in: list[tuple[int, int]] = []
        self._metrics: dict[str, RequestMetrics] = {}
        self._newly_cached: list[CachedBlocks] = []
        self._forgotten: list[int] = []
        chunks = self._schedule()
        self._num_forward = [sum(chunk for job, chunk in chunks if chunk > 1), len(chunks)]
        groups, ended, stats = [], [], self._times()
        for job, chunk in chunks:
            group = self._execute(job, chunk, start, stats)
            if group is not None:
                groups.append(group)
            if len(job.seqs[0].outputs) >= job.num_wanted:
                ended.append(job)
        for job in ended:
            self._release(job)
            self._running.remove(job)
        yield Step(
            step=number,
            start_time=start,
            time=self._time,
            execute=ExecuteModelRequest(
                groups,
                blocks_to_swap_in=self._swapped_in,
                blocks_to_swap_out=self._swapped_out,
                running_queue_size=len(self._running),
            ),
            sequences=self._updates,
            stats=self._stats(stats),
            metrics=self._metrics,
            preemptions=self._preempted,
            wait_reasons=self._wait_reasons(),
            newly_cached_blocks=self._newly_cached,
            uncached_blocks=self._forgotten,
        )
        for job in ended:
            status = SequenceStatus.FINISHED_STOPPED
            yield self._finished(
                job, status if job.stops else SequenceStatus.FINISHED_LENGTH_CAPPED
            )

    def _schedule(self) -> list[tuple[Job, int]]:
        """Who computes how many tokens in this step; makes room and admits the waiting."""
        budget = self._budget
        chunks: list[tuple[Job, int]] = []
        for job in list(self._running):
            if job not in self._running:  # preempted for one before it
                continue
            chunk = min(job.total - job.computed, budget)
            if chunk and self._make_room(job, chunk):
                chunks.append((job, chunk))
                budget -= chunk
        while self._waiting and len(self._running) < self._max_running and budget:
            job = self._waiting[0]
            if not job.computed and self._random.random() < 0.3:
                job.cached = job.computed = (len(job.prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
            chunk = min(job.total - job.computed, budget)
            if job.blocks_for(job.computed + chunk) * len(job.seqs) > len(self._free):
                if not job.swapped:
                    job.cached = job.computed = 0
                break
            self._admit(self._waiting.pop(0), chunk)
            chunks.append((job, chunk))
            budget -= chunk
        return [(job, chunk) for job, chunk in chunks if job in self._running]

    def _make_room(self, job: Job, chunk: int) -> bool:
        while job.blocks_for(job.computed + chunk) * len(job.seqs) > len(self._free):
            victim = self._running[-1]
            self._preempt(victim, job)
            if victim is job:
                return False
        self._grow(job, chunk)
        return True

    def _admit(self, job: Job, chunk: int) -> None:
        self._running.append(job)
        job.resumed = True
        if job.swapped:
            job.swapped = False
            self._swapped_in.append((0, self._free[0]))
        elif not job.metrics.first_scheduled_time:
            self._queries += len(job.prompt)
            self._hits += job.cached
        self._grow(job, chunk)

    def _grow(self, job: Job, chunk: int) -> None:
        for _ in range(job.blocks_for(job.computed + chunk)):
            for seq in job.seqs:
                block = self._take()
                seq.table.append(block)
                seq.unsent.append(block)

    def _take(self) -> int:
        block = self._free.pop(0)
        if block in self._known:
            self._known.remove(block)
            self._forgotten.append(block)
        return block

    def _cache(self, job: Job, seq: Seq) -> None:
        """Let the prefix cache know the full blocks of a sequence."""
        for position, block in enumerate(seq.table[: job.computed // BLOCK_SIZE]):
            if block not in self._known:
                self._known.add(block)
                self._newly_cached.append(
                    CachedBlocks(
                        request_id=job.request_id,
                        seq_id=seq.seq_id,
                        position=position,
                        blocks=[block],
                    )
                )

    def _preempt(self, job: Job, by: Job) -> None:
        mode: PreemptionMode = self._random.choice(get_args(PreemptionMode))
        lost = 0
        if mode == "swap":
            self._swapped_out += [(block, 0) for block in job.seqs[0].table]
            job.swapped = True
        else:
            lost, job.computed, job.cached, job.known = job.computed, 0, 0, False
        self._num_preemptions += 1
        self._running.remove(job)
        self._waiting.insert(0, job)
        self._release(job)
        status = SequenceStatus.SWAPPED if job.swapped else SequenceStatus.WAITING
        self._updates += [self._update(job, seq, status, block_table=[]) for seq in job.seqs]
        self._preempted.append(
            Preemption(
                request_id=job.request_id,
                mode=mode,
                num_lost_tokens=lost,
                for_request_id=by.request_id,
            )
        )

    def _release(self, job: Job) -> None:
        for seq in job.seqs:
            self._free += seq.table
            seq.table, seq.unsent = [], []

    def _execute(
        self, job: Job, chunk: int, start: float, times: StepStats
    ) -> SequenceGroupMetadata | SequenceGroupMetadataDelta:
        """Runs one request's part of the step and returns its metadata or delta."""
        is_prompt = job.computed < job.total - 1 or not job.seqs[0].outputs
        samples = job.computed + chunk == job.total
        group = self._group(job, chunk, is_prompt=is_prompt, samples=samples)
        job.computed += chunk
        self._account(job, start, times, samples=samples)
        if samples and job.num_forks:
            self._fork(job)
        for seq in job.seqs:
            self._cache(job, seq)
            self._sample(job, seq, samples=samples)
        return group

    def _group(
        self, job: Job, chunk: int, *, is_prompt: bool, samples: bool
    ) -> SequenceGroupMetadata | SequenceGroupMetadataDelta:
        if job.known:
            stage = SequenceStage.PREFILL if is_prompt else SequenceStage.DECODE
            deltas = {
                seq.seq_id: SequenceDataDelta(seq.outputs[-1:], seq.logprob, job.computed, stage)
                for seq in job.seqs
            }
            return SequenceGroupMetadataDelta(
                deltas, job.request_id, {}, is_prompt, samples, token_chunk_size=chunk
            )
        job.known = True
        for seq in job.seqs:
            seq.unsent = []  # a full brings its tables along
        return SequenceGroupMetadata(
            job.request_id,
            is_prompt,
            {seq.seq_id: self._data(job, seq) for seq in job.seqs},
            job.params,
            {seq.seq_id: list(seq.table) for seq in job.seqs},
            do_sample=samples,
            token_chunk_size=chunk,
        )

    def _data(self, job: Job, seq: Seq) -> SequenceData:
        data = SequenceData.from_seqs(job.prompt, seq.outputs)
        data._cumulative_logprob = seq.logprob
        data.update_num_cached_tokens(job.cached)
        if job.computed:
            data.update_num_computed_tokens(job.computed)
        return data

    def _account(self, job: Job, start: float, times: StepStats, *, samples: bool) -> None:
        metrics = job.metrics
        for name in ("scheduler_time", "model_forward_time", "model_execute_time"):
            setattr(metrics, name, (getattr(metrics, name) or 0.0) + getattr(times, name))
        first_time = metrics.first_scheduled_time is None
        if first_time:
            metrics.first_scheduled_time = start
            metrics.time_in_queue = start - metrics.arrival_time
        if samples:
            metrics.last_token_time = self._time
            if metrics.first_token_time is None:
                first_time, metrics.first_token_time = True, self._time
        if first_time:
            self._metrics[job.request_id] = dataclasses.replace(metrics)

    def _fork(self, job: Job) -> None:
        """Let a second sequence go on from the first, in blocks of its own if there are any."""
        job.num_forks = 0
        first = job.seqs[0]
        if len(first.table) > len(self._free):
            return
        table = [self._take() for _ in first.table]
        fork = Seq(next(self._seq_ids), list(first.outputs), first.logprob, table)
        job.seqs.append(fork)
        self._updates.append(
            self._update(
                job,
                fork,
                SequenceStatus.RUNNING,
                block_table=list(table),
                parent_seq_id=first.seq_id,
                request_id=job.request_id,
            )
        )

    def _sample(self, job: Job, seq: Seq, *, samples: bool) -> None:
        fields: dict[str, Any] = {}
        if samples:
            token, logprob = self._random.randrange(1024), -self._random.random()
            seq.outputs.append(token)
            seq.logprob += logprob
            fields = {
                "new_token_ids": [token],
                "new_logprobs": [logprob],
                "text_delta": WORDS[token % len(WORDS)],
            }
            if job.params.logprobs:
                fields["top_logprobs"] = [
                    {token: Logprob(logprob, 1, "x"), token + 1: Logprob(logprob - 1.0, 2, None)}
                ]
        ends = len(seq.outputs) >= job.num_wanted
        status = SequenceStatus.RUNNING
        if ends and job.stops:
            status = SequenceStatus.FINISHED_STOPPED
            fields["stop_reason"] = self._random.choice([2, "\n\n", None])
        elif ends:
            status = SequenceStatus.FINISHED_LENGTH_CAPPED
        if ends:
            fields["block_table"] = []
        elif self._random.random() < 0.05:
            fields["block_table"] = list(seq.table)
        else:
            fields["new_blocks"] = seq.unsent
        seq.unsent = []
        self._updates.append(self._update(job, seq, status, **fields))

    def _update(self, job: Job, seq: Seq, status: SequenceStatus, **fields: Any) -> SequenceUpdate:
        return SequenceUpdate(
            seq_id=seq.seq_id,
            status=status,
            num_computed_tokens=job.computed,
            num_cached_tokens=job.cached,
            **fields,
        )

    def _abort(self) -> Iterator[RequestFinished]:
        jobs = self._waiting + self._running
        if not jobs:
            return
        job = self._random.choice(jobs)
        self._release(job)
        (self._waiting if job in self._waiting else self._running).remove(job)
        yield self._finished(job, SequenceStatus.FINISHED_ABORTED)

    def _finished(self, job: Job, status: SequenceStatus) -> RequestFinished:
        return RequestFinished(
            request_id=job.request_id,
            time=self._time,
            status=status,
            metrics=dataclasses.replace(job.metrics, finished_time=self._time),
        )

    def _wait_reasons(self) -> list[WaitReason]:
        if not self._waiting:
            return []
        head = self._waiting[0]
        full = len(self._running) >= self._max_running
        return [
            WaitReason(
                request_id=head.request_id,
                cause="seq_limit" if full else "no_blocks",
                num_missing=0 if full else max(1, head.blocks_for(head.total)),
            )
        ]

    def _times(self) -> StepStats:
        forward = self._random.uniform(0.005, 0.02)
        return events.stats(
            num_running=0,
            num_waiting=0,
            num_used_blocks=0,
            num_free_blocks=0,
            num_cached_blocks=0,
            num_prefill_tokens=self._num_forward[0],
            num_decode_tokens=self._num_forward[1],
            prefix_cache_queries=self._queries,
            prefix_cache_hits=self._hits,
            num_preemptions=self._num_preemptions,
            scheduler_time=self._random.uniform(0.0001, 0.001),
            model_forward_time=forward,
            model_execute_time=forward * 1.2,
        )

    def _stats(self, stats: StepStats) -> StepStats:
        stats.num_running = len(self._running)
        stats.num_waiting = sum(not job.swapped for job in self._waiting)
        stats.num_swapped = sum(job.swapped for job in self._waiting)
        stats.num_cached_blocks = len(self._known.intersection(self._free))
        stats.num_free_blocks = len(self._free) - stats.num_cached_blocks
        stats.num_used_blocks = self._num_blocks - len(self._free)
        return stats

    def _text(self, num_words: int) -> str:
        return "".join(self._random.choice(WORDS) for _ in range(num_words))
