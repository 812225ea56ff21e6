"""Simulated engines of any size for the benchmarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from seqtop.sequence import (
    RequestMetrics,
    SamplingParams,
    SequenceGroupMetadataDelta,
    SequenceStatus,
)
from seqtop.wire.arrays import Ints
from seqtop.wire.batch import members
from seqtop.wire.messages import (
    EngineInfo,
    Event,
    RequestArrived,
    RequestFinished,
    SequenceUpdate,
    Step,
    StepStats,
)
from tests.support import events
from tests.support.random_engine import WORDS, RandomEngine
from tests.support.scripted import ScriptedSource, engine_info

__all__ = ["Crowd", "RandomEngine", "ScriptedSource", "decoding", "num_deltas", "stats"]

START = 1_700_000_000.0
STEP_SECONDS = 0.02
PROMPT_TOKENS = 500
_TOGETHER = 100


def stats(num_running: int = 0, num_waiting: int = 0) -> StepStats:
    return events.stats(
        num_running=num_running,
        num_waiting=num_waiting,
        num_used_blocks=40 * num_running,
        num_free_blocks=1_000,
        num_cached_blocks=0,
        num_prefill_tokens=0,
        num_decode_tokens=num_running,
        prefix_cache_queries=1_000,
        prefix_cache_hits=100,
        num_preemptions=0,
        scheduler_time=0.0005,
        model_forward_time=0.015,
        model_execute_time=0.018,
    )


class Crowd:
    """An engine with `size` running sequences; each step adds a token to some of them.

    Requests have one sequence each, whose id is the request's number.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.time = START
        self.number = 0
        self._outputs = [0] * size

    def arrivals(self) -> Iterator[Event]:
        """Returns the engine, its requests, and a step that has computed every prompt."""
        yield self.info
        for number in range(self.size):
            yield self._arrival(number)
        yield self._prefill()

    @property
    def info(self) -> EngineInfo:
        return engine_info(
            num_gpu_blocks=40 * self.size,
            max_num_seqs=self.size,
            max_num_batched_tokens=8_192,
            max_model_len=8_192,
            heartbeat_interval=1.0,
        )

    def step(self, numbers: Iterable[int]) -> Step:
        """Returns a step with a token for each of `numbers`, and a block every sixteen tokens."""
        chosen = list(numbers)
        blocks = {}
        for number in chosen:
            self._outputs[number] += 1
            if self._outputs[number] % 16 == 0:
                blocks[number] = [(number * 7 + self._outputs[number]) % 8_000]
        groups, updates = [], []
        for number in chosen:
            token = (number + self._outputs[number]) % 1_000
            num_computed = PROMPT_TOKENS + self._outputs[number] - 1
            groups.append(
                events.delta(
                    f"req-{number}",
                    number,
                    computed=num_computed,
                    outputs={number: ([(token - 1) % 1_000], 0.0)},  # that of the step before
                    do_sample=True,
                )
            )
            updates.append(
                events.update(
                    number,
                    tokens=[token],
                    text=WORDS[token % len(WORDS)],
                    blocks=blocks.get(number, []),
                    logprobs=[-token / 1_024],
                )
            )
        return self._step(groups, updates, len(chosen))

    def ends(self) -> Iterator[Event]:
        """Returns the end of all sequences."""
        yield from (self._end(number) for number in range(self.size))

    def short_lives(self, num_tokens: int) -> Iterator[Event]:
        """Returns the requests, each with all its tokens and its end in the next step."""
        for first in range(0, self.size, _TOGETHER):
            numbers = range(first, min(first + _TOGETHER, self.size))
            yield from (self._arrival(number) for number in numbers)
            updates = [
                events.update(
                    number,
                    status=SequenceStatus.FINISHED_STOPPED,
                    computed=PROMPT_TOKENS + num_tokens,
                    tokens=[(number + index) % 1_000 for index in range(num_tokens)],
                    logprobs=[-index / 128 for index in range(num_tokens)],
                    text=" once" * num_tokens,
                    table=[],
                )
                for number in numbers
            ]
            yield self._step([], updates, 0)
            yield from (self._end(number) for number in numbers)

    def _prefill(self) -> Step:
        groups, updates = [], []
        for number in range(self.size):
            groups.append(
                events.delta(
                    f"req-{number}",
                    number,
                    computed=0,
                    outputs={number: ([], 0.0)},
                    is_prompt=True,
                    do_sample=True,
                    token_chunk_size=PROMPT_TOKENS,
                )
            )
            updates.append(
                events.update(
                    number,
                    status=SequenceStatus.RUNNING,
                    computed=PROMPT_TOKENS,
                    tokens=[number % 1_000],
                    logprobs=[-0.5],
                    text=" once",
                    table=[number % 8_000] * (PROMPT_TOKENS // 16 + 1),
                )
            )
        return self._step(groups, updates, self.size)

    def _step(
        self,
        groups: list[SequenceGroupMetadataDelta],
        updates: list[SequenceUpdate],
        num_running: int,
    ) -> Step:
        self.number += 1
        start, self.time = self.time, self.time + STEP_SECONDS
        return events.step(
            self.number,
            *groups,
            start_time=start,
            time=self.time,
            sequences=updates,
            stats=stats(num_running, self.size - num_running),
        )

    def _arrival(self, number: int) -> RequestArrived:
        return RequestArrived(
            request_id=f"req-{number}",
            arrival_time=START - 60 + number * 1e-4,
            seq_ids=[number],
            num_prompt_tokens=PROMPT_TOKENS,
            prompt="Tell me a story about a fox.",
            prompt_token_ids=Ints.of([1, 2, 3]),
            sampling_params=SamplingParams(max_tokens=4_000),
            metrics=self._metrics(number),
        )

    def _end(self, number: int) -> RequestFinished:
        return RequestFinished(
            request_id=f"req-{number}",
            time=self.time,
            status=SequenceStatus.FINISHED_STOPPED,
            metrics=self._metrics(number),
        )

    def _metrics(self, number: int) -> RequestMetrics:
        arrival = START - 60 + number * 1e-4
        return RequestMetrics(
            arrival_time=arrival,
            last_token_time=arrival,
            first_scheduled_time=arrival + 0.01,
            first_token_time=arrival + 0.1,
            time_in_queue=0.01,
        )


def num_deltas(step: Step) -> int:
    """Returns the number of sequences in a step that ran or changed."""
    return len(
        {member.seq_id for member in members(step)} | {update.seq_id for update in step.sequences}
    )


def decoding(running: int, num_steps: int, *, seed: int = 1) -> RandomEngine:
    """Returns a seeded engine in which about `running` sequences arrive, decode and finish."""
    return RandomEngine(
        seed,
        num_steps,
        load=running + running // 8,
        max_running=running,
        num_blocks=running * 60,
        budget=running * 8,
        prompt=(20, 300),
        output=(100, 400),
    )
