"""A simulated engine: the books of a paged engine, and the valid messages that say what it does.

It decides nothing. `RandomEngine` and `Script` decide who runs, and share this.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from seqtop.sequence import (
    ExecuteModelRequest,
    RequestMetrics,
    SamplingParams,
    SequenceData,
    SequenceGroupMetadata,
    SequenceGroupMetadataLike,
    SequenceStatus,
)
from seqtop.wire.arrays import Ints
from seqtop.wire.messages import (
    CachedBlocks,
    EngineInfo,
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


@dataclass
class SimulatedSequence:
    """One sequence of a request, as the engine knows it."""

    seq_id: int
    outputs: list[int] = field(default_factory=list)
    logprob: float = 0.0
    table: list[int] = field(default_factory=list)
    unsent: list[int] = field(default_factory=list)
    """Blocks of `table` that are not published yet."""
    is_replaced: bool = False
    """True if `unsent` does not describe the change of `table`."""
    num_stored: int = 0
    """Leading blocks that the prefix cache has."""


@dataclass
class SimulatedRequest:
    """A request and its sequences, which have computed the same number of tokens."""

    request_id: str
    num_prompt: int
    params: SamplingParams
    metrics: RequestMetrics
    seqs: list[SimulatedSequence]
    prompt: list[int] = field(default_factory=list)
    computed: int = 0
    cached: int = 0
    is_sent: bool = False
    """True if the worker has it, so that it is scheduled by deltas."""
    is_swapped: bool = False

    @property
    def seq_ids(self) -> list[int]:
        return [seq.seq_id for seq in self.seqs]

    @property
    def total(self) -> int:
        """The tokens of its first sequence."""
        return self.num_prompt + len(self.seqs[0].outputs)

    def blocks_for(self, num_tokens: int) -> int:
        """Returns the blocks that each sequence lacks to hold so many tokens."""
        return -(-num_tokens // BLOCK_SIZE) - len(self.seqs[0].table)


class SimulatedEngine:
    """The books of an engine. Between `begin_step` and `end_step`, its methods make a step.

    Args:
        info: The description of the engine.
        publishes_cache: Whether steps say which blocks the prefix cache has.
        sends_full: Whether a request is scheduled in full at first, and not only by deltas.
    """

    def __init__(
        self, info: EngineInfo, *, publishes_cache: bool = True, sends_full: bool = True
    ) -> None:
        self.info = info
        self.time = info.start_time
        self.number = 0
        """The number of the next step."""
        self.running: list[SimulatedRequest] = []
        self.waiting: list[SimulatedRequest] = []
        self.cached: dict[int, CachedBlocks] | None = {} if publishes_cache else None
        """The content of the prefix cache by block; `None` if it is not published."""
        self.num_preemptions = self.hits = self.queries = 0
        self._sends_full = sends_full
        self._free = deque(range(info.num_gpu_blocks))
        """Free blocks; the next one is at the left."""
        self._num_tables: Counter[int] = Counter()
        """The tables that have a block."""
        self._seq_ids = itertools.count(1)

    @property
    def num_available(self) -> int:
        """The blocks in no table."""
        return len(self._free)

    def arrive(
        self,
        request_id: str,
        text: str,
        params: SamplingParams,
        *,
        num_prompt: int = 0,
        prompt: list[int] | None = None,
        n: int = 1,
        priority: int = 0,
    ) -> tuple[SimulatedRequest, RequestArrived]:
        """Adds a request to the end of the queue.

        Args:
            num_prompt: The length of a prompt whose tokens nobody needs; else give `prompt`.
        """
        prompt = prompt or []
        request = SimulatedRequest(
            request_id,
            num_prompt or len(prompt),
            params,
            RequestMetrics(self.time, self.time, None, None, None),
            [SimulatedSequence(next(self._seq_ids)) for _ in range(n)],
            prompt,
        )
        self.waiting.append(request)
        arrived = RequestArrived(
            request_id=request_id,
            arrival_time=self.time,
            seq_ids=request.seq_ids,
            num_prompt_tokens=request.num_prompt,
            prompt=text,
            prompt_token_ids=Ints.of(prompt),
            sampling_params=params,
            priority=priority,
        )
        return request, arrived

    def finish(self, request: SimulatedRequest, status: SequenceStatus) -> RequestFinished:
        """Ends a request, wherever it is."""
        request.metrics.finished_time = self.time
        self.remove(request)
        return RequestFinished(
            request_id=request.request_id,
            time=self.time,
            status=status,
            metrics=dataclasses.replace(request.metrics),
        )

    def remove(self, request: SimulatedRequest) -> None:
        """Frees the blocks of a request, which neither runs nor waits any more."""
        self.release(request)
        for requests in (self.running, self.waiting):
            if request in requests:
                requests.remove(request)

    def begin_step(self, seconds: float) -> None:
        """Begins a step of a duration."""
        self._start, self.time = self.time, self.time + seconds
        self._groups: list[SequenceGroupMetadataLike] = []
        self._updates: list[SequenceUpdate] = []
        self._metrics: dict[str, RequestMetrics] = {}
        self._preemptions: list[Preemption] = []
        self._evicted: list[int] = []
        self._swapped_out: list[tuple[int, int]] = []
        self._swapped_in: list[tuple[int, int]] = []

    def end_step(self, figures: StepStats, waits: list[WaitReason] | None = None) -> Step:
        """Returns the step with all that was done in it.

        Args:
            figures: The figures that the books do not have: tokens and durations.
            waits: The reasons of those that wait.
        """
        newly_cached = self._cache_full_blocks()
        self.count(figures)
        self.number += 1
        return events.step(
            self.number - 1,
            start_time=self._start,
            time=self.time,
            execute=ExecuteModelRequest(
                self._groups,
                blocks_to_swap_in=self._swapped_in,
                blocks_to_swap_out=self._swapped_out,
                running_queue_size=len(self.running),
            ),
            sequences=self._updates,
            stats=figures,
            metrics=self._metrics,
            preemptions=self._preemptions,
            wait_reasons=waits or [],
            newly_cached_blocks=newly_cached,
            uncached_blocks=self._evicted,
        )

    def count(self, figures: StepStats) -> StepStats:
        """Fills in the figures that the books have, and returns them."""
        figures.num_running = len(self.running)
        figures.num_waiting = sum(not request.is_swapped for request in self.waiting)
        figures.num_used_blocks = len(self._num_tables)
        if self.cached is not None:
            figures.num_cached_blocks = len(self.cached.keys() - self._num_tables.keys())
        figures.num_free_blocks = len(self._free) - (figures.num_cached_blocks or 0)
        figures.prefix_cache_queries, figures.prefix_cache_hits = self.queries, self.hits
        figures.num_preemptions = self.num_preemptions
        return figures

    def take_next(self, block: int) -> None:
        """Makes a free block the next one that is taken."""
        self._free.remove(block)
        self._free.appendleft(block)

    def admit(self, request: SimulatedRequest) -> None:
        """Moves a request from the queue to those that run."""
        self.waiting.remove(request)
        self.running.append(request)
        if request.is_swapped:
            request.is_swapped = False
            self._swapped_in.append((0, self._free[0]))
        elif request.metrics.first_scheduled_time is None:
            self.queries += request.num_prompt
            self.hits += request.cached

    def preempt(self, request: SimulatedRequest, by: str, mode: PreemptionMode) -> None:
        """Moves a running request to the head of the queue, and frees its blocks."""
        lost = 0
        if mode == "swap":
            self._swapped_out += [(block, 0) for block in request.seqs[0].table]
            request.is_swapped = True
        else:
            lost, request.computed, request.cached = request.computed, 0, 0
            request.is_sent = False
        self.num_preemptions += 1
        self.running.remove(request)
        self.waiting.insert(0, request)
        self.release(request)
        status = SequenceStatus.SWAPPED if request.is_swapped else SequenceStatus.WAITING
        for seq in request.seqs:
            self.update(request, seq, status, table=[])
        self._preemptions.append(events.preemption(request.request_id, mode=mode, lost=lost, by=by))

    def share(self, request: SimulatedRequest, owner: SimulatedRequest, num_blocks: int) -> None:
        """Lets a request begin with the first blocks of another one, as prefix hits."""
        request.cached = request.computed = num_blocks * BLOCK_SIZE
        for seq in request.seqs:
            seq.table = owner.seqs[0].table[:num_blocks]
            seq.is_replaced = True
            self._num_tables.update(seq.table)

    def grow(self, request: SimulatedRequest, num_tokens: int) -> None:
        """Takes the blocks that the sequences of a request lack to hold so many tokens."""
        for seq in request.seqs:
            for _ in range(-(-num_tokens // BLOCK_SIZE) - len(seq.table)):
                block = self.take()
                seq.table.append(block)
                seq.unsent.append(block)

    def take(self) -> int:
        """Takes the next free block; the prefix cache loses it."""
        block = self._free.popleft()
        self._num_tables[block] = 1
        if self.cached and self.cached.pop(block, None):
            self._evicted.append(block)
        return block

    def release(self, request: SimulatedRequest) -> None:
        """Frees the blocks of a request; those in the prefix cache are taken last."""
        for seq in request.seqs:
            kept: list[int] = []
            for block in seq.table:
                self._num_tables[block] -= 1
                if self._num_tables[block]:
                    continue
                del self._num_tables[block]
                if block in (self.cached or ()):
                    kept.append(block)
                else:
                    self._free.appendleft(block)
            self._free.extend(reversed(kept))
            seq.table, seq.unsent, seq.num_stored, seq.is_replaced = [], [], 0, False

    def fork(self, request: SimulatedRequest) -> None:
        """Lets a second sequence go on from the first, in blocks of its own."""
        first = request.seqs[0]
        table = [self.take() for _ in first.table]
        fork = SimulatedSequence(next(self._seq_ids), list(first.outputs), first.logprob, table)
        request.seqs.append(fork)
        self.update(
            request,
            fork,
            SequenceStatus.RUNNING,
            table=list(table),
            parent=first.seq_id,
            request_id=request.request_id,
        )

    def schedule(
        self,
        request: SimulatedRequest,
        chunk: int,
        *,
        is_prompt: bool,
        samples: bool,
        times: StepStats | None = None,
    ) -> None:
        """Adds a request to the batch.

        Args:
            chunk: The tokens that it computes.
            is_prompt: Whether they are of a prompt.
            samples: Whether a token is sampled afterwards.
            times: The durations to add to its metrics.
        """
        self._groups.append(self._group(request, chunk, is_prompt=is_prompt, samples=samples))
        request.computed = min(request.computed + chunk, request.total)
        metrics = request.metrics
        for name in ("scheduler_time", "model_forward_time", "model_execute_time") if times else ():
            setattr(metrics, name, (getattr(metrics, name) or 0.0) + getattr(times, name))
        has_new = metrics.first_scheduled_time is None
        if has_new:
            metrics.first_scheduled_time = self._start
            metrics.time_in_queue = self._start - metrics.arrival_time
        if samples:
            metrics.last_token_time = self.time
            if metrics.first_token_time is None:
                has_new, metrics.first_token_time = True, self.time
        if has_new:
            self._metrics[request.request_id] = dataclasses.replace(metrics)

    def sample(
        self,
        request: SimulatedRequest,
        seq: SimulatedSequence,
        token: tuple[int, float, str] | None,
        end: SequenceStatus | None = None,
        **fields: Any,
    ) -> None:
        """Adds the update of a sequence in the batch.

        Args:
            token: A token with its log probability and text; `None` if none is sampled.
            end: The status with which it ends, if it does.
            fields: Further fields of the update.
        """
        if token is not None:
            token_id, logprob, text = token
            seq.outputs.append(token_id)
            seq.logprob += logprob
            fields |= {"tokens": [token_id], "logprobs": [logprob], "text": text}
        if end is not None:
            fields["table"] = []
        elif seq.is_replaced:
            fields["table"] = list(seq.table)
        else:
            fields["blocks"] = seq.unsent
        seq.unsent, seq.is_replaced = [], False
        self.update(request, seq, SequenceStatus.RUNNING if end is None else end, **fields)

    def update(
        self,
        request: SimulatedRequest,
        seq: SimulatedSequence,
        status: SequenceStatus,
        **fields: Any,
    ) -> None:
        """Adds an update to the step."""
        self._updates.append(
            events.update(seq.seq_id, status, request.computed, cached=request.cached, **fields)
        )

    def _group(
        self, request: SimulatedRequest, chunk: int, *, is_prompt: bool, samples: bool
    ) -> SequenceGroupMetadataLike:
        if request.is_sent or not self._sends_full:
            return events.delta(
                request.request_id,
                *request.seq_ids,
                computed=request.computed,
                outputs={seq.seq_id: (seq.outputs[-1:], seq.logprob) for seq in request.seqs},
                is_prompt=is_prompt,
                do_sample=samples,
                token_chunk_size=chunk,
            )
        request.is_sent = True
        for seq in request.seqs:
            seq.unsent, seq.is_replaced = [], False  # full metadata has the tables
        return SequenceGroupMetadata(
            request.request_id,
            is_prompt,
            {seq.seq_id: self._data(request, seq) for seq in request.seqs},
            request.params,
            {seq.seq_id: list(seq.table) for seq in request.seqs},
            do_sample=samples,
            token_chunk_size=chunk,
        )

    def _data(self, request: SimulatedRequest, seq: SimulatedSequence) -> SequenceData:
        data = SequenceData.from_seqs(request.prompt, seq.outputs)
        data._cumulative_logprob = seq.logprob
        data.update_num_cached_tokens(request.cached)
        if request.computed:
            data.update_num_computed_tokens(request.computed)
        return data

    def _cache_full_blocks(self) -> list[CachedBlocks] | None:
        """Adds the full blocks of those that run to the prefix cache."""
        if self.cached is None:
            return None
        newly: list[CachedBlocks] = []
        for request in self.running:
            num_full = request.computed // BLOCK_SIZE
            for seq in request.seqs:
                for position in range(seq.num_stored, min(num_full, len(seq.table))):
                    block = seq.table[position]
                    if block not in self.cached:
                        self.cached[block] = CachedBlocks(
                            request_id=request.request_id,
                            seq_id=seq.seq_id,
                            position=position,
                            blocks=[block],
                        )
                        newly.append(self.cached[block])
                seq.num_stored = max(seq.num_stored, num_full)
        return newly
