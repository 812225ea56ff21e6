"""Runs of the bundled engine, on a simulated clock, whose requests share prefixes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from engine_stub.entrypoints.reporting import StepPublisher, engine_info
from seqtop.history.step_time import StepTime
from seqtop.misses.cache_misses import CacheMisses
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.whatif.replay import Clock
from seqtop.wire import parsing
from tests.support.mutants import PayloadCollector
from tests.support.simulated_model import engine_without_model

BASE: dict[str, Any] = {
    "block_size": 16,
    "num_gpu_blocks": 100,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 256,
    "max_model_len": 1024,
}
STEP_TIME = StepTime(per_step=1e-3, per_prefill_token=1e-5, per_decode_token=1e-4)


class CacheRequest(NamedTuple):
    """A request of a workload."""

    time: float
    prompt: list[int] | str
    output: list[int]


def documents(
    rng: random.Random,
    *,
    count: int = 100,
    num_documents: int = 24,
    rate: float = 40.0,
    output: tuple[int, int] = (8, 40),
) -> Iterator[CacheRequest]:
    """Yields questions about documents, of which some are asked about more often."""
    texts = [_tokens(rng, rng.randrange(64, 200)) for _ in range(num_documents)]
    weights = [(number + 1) ** -0.8 for number in range(num_documents)]
    time = 0.0
    for _ in range(count):
        time += rng.expovariate(rate)
        prompt = rng.choices(texts, weights)[0] + _tokens(rng, rng.randrange(5, 40))
        yield CacheRequest(time, prompt, _tokens(rng, rng.randrange(*output)))


def chats(
    rng: random.Random, *, count: int = 20, turns: int = 5, rate: float = 12.0
) -> list[CacheRequest]:
    """Yields the turns of chats, each with the answers so far in its prompt."""
    requests: list[CacheRequest] = []
    time = 0.0
    for _ in range(count):
        time += rng.expovariate(rate)
        history, at = _tokens(rng, rng.randrange(20, 60)), time
        for _ in range(turns):
            output = _tokens(rng, rng.randrange(10, 50))
            requests.append(CacheRequest(at, history, output))
            history = history + output + _tokens(rng, rng.randrange(8, 40))
            at += 0.05 + rng.expovariate(1.0)
    return sorted(requests, key=lambda request: request.time)


def loop(rng: random.Random, *, count: int = 64, num_documents: int = 16) -> Iterator[CacheRequest]:
    """Yields questions about documents in turn: the worst order for a cache that is too small."""
    texts = [_tokens(rng, 128) for _ in range(num_documents)]
    for number in range(count):
        prompt = texts[number % num_documents] + _tokens(rng, rng.randrange(5, 30))
        yield CacheRequest(number / 30, prompt, _tokens(rng, rng.randrange(8, 30)))


class Workload(NamedTuple):
    """A workload and the settings of the engine that are not those of `BASE`."""

    make: Callable[[random.Random], Iterable[CacheRequest]]
    settings: dict[str, Any]

    def requests(self, seed: int = 1) -> list[CacheRequest]:
        """Returns the requests."""
        return [*self.make(random.Random(seed))]


WORKLOADS = {
    "documents": Workload(documents, {}),
    "documents, twice as many": Workload(lambda rng: documents(rng, rate=80), {}),
    "documents, requests wait for blocks": Workload(
        lambda rng: documents(rng, rate=120), {"num_gpu_blocks": 70}
    ),
    "documents, preemptions": Workload(
        lambda rng: documents(rng, count=80, rate=60, output=(60, 160)), {}
    ),
    "documents, no chunked prefill": Workload(
        documents, {"enable_chunked_prefill": False, "max_num_batched_tokens": 1024}
    ),
    "chats": Workload(chats, {}),
    "chats, requests wait for blocks": Workload(
        lambda rng: chats(rng, rate=30), {"num_gpu_blocks": 70}
    ),
    "documents in turn": Workload(loop, {}),
}


def run(
    requests: list[CacheRequest], *, step_time: StepTime = STEP_TIME, **settings: Any
) -> list[bytes]:
    """Runs the real scheduler with a simulated model; returns the messages."""
    clock, events = Clock(), PayloadCollector()
    clock.now = start = 1e9
    outputs = {f"req-{number}": request.output for number, request in enumerate(requests)}
    engine = engine_without_model(clock, outputs, step_time.step_seconds, **(BASE | settings))
    events.publish(engine_info(engine, engine_id="cache", control=False))
    steps = StepPublisher(events)
    for number, request in enumerate(requests):
        due = start + request.time
        while engine.has_unfinished_requests() and clock.now < due:
            steps.stepped(engine.step())
        clock.now = max(clock.now, due)
        params = SamplingParams(
            temperature=0.0, max_tokens=len(request.output), ignore_eos=True, detokenize=False
        )
        for group in engine.add_request(f"req-{number}", request.prompt, params, due):
            steps.arrived(group)
    while engine.has_unfinished_requests():
        steps.stepped(engine.step())
    return events.payloads


def misses_of(payloads: list[bytes], *, first: int = 1, **options: int) -> CacheMisses:
    """Returns the misses of a run, from one of its messages on."""
    events = [parsing.event(payload) for payload in payloads]
    state, misses = EngineState(), CacheMisses(**options)
    for event in events[:first]:
        state.apply(event)
    misses.start(first - 1, state)
    for position, event in enumerate(events[first:], first):
        misses.before(event)
        misses.apply(position, event, [*state.apply(event)])
    return misses


def _tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(3, 250) for _ in range(count)]
