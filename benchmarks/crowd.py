"""An engine with as many sequences as one likes, as a source for the app, without any engine.

What happens to it is applied by hand, a step at a time, on whichever thread one calls it on.
"""

from __future__ import annotations

import itertools
import threading

from seqtop.link import Link, LinkState
from seqtop.sequence import (
    ExecuteModelRequest,
    RequestMetrics,
    SamplingParams,
    SequenceGroupMetadataDelta,
    SequenceStatus,
)
from seqtop.state import EngineState
from seqtop.wire.messages import EngineInfo, Event, RequestArrived, SequenceUpdate, Step, StepStats

START = 1_700_000_000.0
STEP_TIME = 0.01
_PARAMS = SamplingParams(max_tokens=4096)
_WORDS = ("once ", "upon ", "a ", "time ", "there ", "was ", "a ", "little ", "fox ", "named ")


class Crowd:
    """A `seqtop.tui.source.Source` of `num_running` sequences that decode, and `num_waiting`."""

    history = None

    def __init__(self, num_running: int, num_waiting: int = 0) -> None:
        self.lock = threading.RLock()
        self.state = EngineState(max_finished=100_000)
        self.link = Link("ipc:///crowd", LinkState.LIVE)
        self.version = 0
        self.running: list[int] = []
        self._touched: set[int] | None = None
        self._numbers = itertools.count()
        self._time = START
        self.apply(_info())
        for seq_id in range(num_running + num_waiting):
            self.apply(_arrival(seq_id, START + seq_id * 1e-4))
        self._time = START + (num_running + num_waiting) * 1e-4
        for first in range(0, num_running, 1024):
            batch = range(first, min(first + 1024, num_running))
            self.running += batch
            self.apply(self.step(batch, prefill=True))

    def step(self, seq_ids: list[int] | range, *, prefill: bool = False) -> Step:
        """The next step, in which these sequences get a token each; apply it yourself."""
        number, start = next(self._numbers), self._time
        self._time = start + STEP_TIME
        sequences = self.state.sequences
        word = _WORDS[number % len(_WORDS)]
        groups = [
            SequenceGroupMetadataDelta({}, f"req-{each}", {}, prefill, token_chunk_size=1)
            for each in seq_ids
        ]
        updates = [
            SequenceUpdate(
                each,
                SequenceStatus.RUNNING,
                sequences[each].num_computed_tokens + (64 if prefill else 1),
                new_token_ids=[number % 1000],
                new_logprobs=[-0.5],
                text_delta=word,
                new_blocks=[each] if (number + each) % 16 == 0 or prefill else [],
            )
            for each in seq_ids
        ]
        metrics = {}
        if prefill:
            for each in seq_ids:
                arrived = START + each * 1e-4
                metrics[f"req-{each}"] = RequestMetrics(
                    arrived, self._time, start, self._time, start - arrived
                )
        stats = StepStats(
            num_running=len(self.running),
            num_waiting=len(sequences) - len(self.running),
            num_used_blocks=min(100 + number, 8000),
            num_free_blocks=8192 - min(100 + number, 8000),
            num_cached_blocks=0,
            num_prefill_tokens=len(groups) if prefill else 0,
            num_decode_tokens=0 if prefill else len(groups),
            prefix_cache_queries=0,
            prefix_cache_hits=0,
            num_preemptions=0,
            scheduler_time=0.001,
            model_forward_time=0.005,
            model_execute_time=0.006,
        )
        return Step(
            number, start, self._time, ExecuteModelRequest(groups), updates, stats, metrics=metrics
        )

    def apply(self, event: Event) -> None:
        with self.lock:
            touched = self.state.apply(event)
            if self._touched is not None:
                self._touched.update(touched)
            self.version += 1
            self.link.num_messages += 1

    def drain(self) -> set[int] | None:
        with self.lock:
            touched, self._touched = self._touched, set()
            return touched

    def submit(self, prompt: str, params: SamplingParams) -> str:
        raise NotImplementedError

    def abort(self, request_id: str) -> None:
        raise NotImplementedError


def _arrival(seq_id: int, time: float) -> RequestArrived:
    return RequestArrived(
        request_id=f"req-{seq_id}",
        arrival_time=time,
        seq_ids=[seq_id],
        num_prompt_tokens=64,
        prompt="Tell me a story about a fox.",
        sampling_params=_PARAMS,
    )


def _info() -> EngineInfo:
    return EngineInfo(
        protocol_version=1,
        engine_id="crowd",
        incarnation="c",
        engine="benchmark",
        model="none",
        dtype="float32",
        device="cpu",
        start_time=START,
        block_size=16,
        num_gpu_blocks=8192,
        num_cpu_blocks=None,
        max_num_seqs=100_000,
        max_num_batched_tokens=8192,
        max_model_len=4096,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
        preemption_mode="recompute",
    )
