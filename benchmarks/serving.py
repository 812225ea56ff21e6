"""Requests that arrive over time, and three ways to serve them with the same weights.

* the engine as users run it, with scheduler, prefix cache, detokenization and publishing;
* `generate()` with static batches: each batch takes as many of the arrived requests as fit, padded
  on the left to the longest prompt, and runs until its longest output is complete;
* `transformers`' own continuous batching.

All of them decode greedily, the number of tokens that each request asks for.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaForCausalLM,
    Qwen3ForCausalLM,
)

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publisher_link import PublisherLink
from engine_stub.entrypoints.reporting import engine_info
from engine_stub.entrypoints.reports import Start
from seqtop.sequence import SamplingParams

MOST_AT_ONCE = 32
"""The most sequences that run at the same time, in any of the three ways."""

MAX_MODEL_LEN = 512

ENDPOINT = "tcp://127.0.0.1:5997"


@dataclass(frozen=True)
class Request:
    """A prompt that arrives `arrival` seconds after the first one."""

    prompt: list[int]
    num_outputs: int
    arrival: float = 0.0


@dataclass
class Run:
    """The times of serving requests, in seconds.

    Attributes:
        seconds: From the first arrival to the last token.
        latencies: From each arrival to that request's last token.
        waits: From each arrival to the beginning of its prefill, where known.
        first_tokens: From each arrival to its first token, where known.
        decode_steps: Durations of the engine's steps in which all requests decoded.
    """

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    decode_steps: list[float] = field(default_factory=list)


def all_at_once(vocab_size: int, size: int) -> list[Request]:
    """Returns `size` requests that arrive together, with 128 tokens in and 128 out."""
    rng = random.Random(size)
    return [Request(_prompt(rng, vocab_size, 128), 128) for _ in range(size)]


def arrivals(vocab_size: int, size: int, rate: float) -> list[Request]:
    """Returns `size` requests of random lengths and arrivals, `rate` per second on average."""
    rng = random.Random(size)
    trace: list[Request] = []
    now = 0.0
    for _ in range(size):
        prompt = _prompt(rng, vocab_size, rng.randint(16, 256))
        trace.append(Request(prompt, rng.randint(8, 256), now))
        now += rng.expovariate(rate)
    return trace


def _prompt(rng: random.Random, vocab_size: int, length: int) -> list[int]:
    return [rng.randrange(2, vocab_size) for _ in range(length)]


@contextmanager
def published_engine(
    path: Path, dtype: str = "float32", **settings: Any
) -> Iterator[tuple[LLMEngine, PublisherLink]]:
    """Yields a new engine with the link to its publisher.

    Args:
        path: The directory of the model.
        dtype: The name of the torch dtype.
        settings: Fields of `EngineConfig`.
    """
    sizes: dict[str, Any] = {
        "device": "cpu",
        "max_num_seqs": MOST_AT_ONCE,
        "max_num_batched_tokens": 1024,
        "max_model_len": MAX_MODEL_LEN,
    }
    engine = LLMEngine(EngineConfig(model=path, dtype=dtype, **sizes | settings))
    info = engine_info(engine, engine_id="benchmark", control=False)
    with closing(PublisherLink()) as link:
        link.start(Start(info, ENDPOINT, insecure=False, keys=None))
        yield engine, link


def serve_with_engine(
    path: Path, requests: list[Request], dtype: str = "float32", **settings: Any
) -> Run:
    """Serves with a new engine, whose start does not count."""
    run = Run()
    with published_engine(path, dtype, **settings) as (engine, publisher):
        pending = list(enumerate(requests))
        begin, began_at = time.perf_counter(), engine.clock()
        while pending or engine.has_unfinished_requests():
            step_begin = time.perf_counter()
            while pending and pending[0][1].arrival <= step_begin - begin:
                index, request = pending.pop(0)
                params = SamplingParams(
                    temperature=0.0, max_tokens=request.num_outputs, ignore_eos=True
                )
                for group in engine.add_request(
                    str(index), request.prompt, params, began_at + request.arrival
                ):
                    publisher.arrived(group)
            if not engine.has_unfinished_requests():
                _sleep_until(begin + pending[0][1].arrival)
                continue
            record = engine.step()
            publisher.stepped(record)
            now = time.perf_counter()
            if record.num_decode_tokens == len(requests) and not record.num_prefill_tokens:
                run.decode_steps.append(now - step_begin)
            for group in record.finished:
                metrics = group.metrics
                assert metrics.time_in_queue is not None
                assert metrics.first_token_time is not None
                run.latencies.append(record.time - group.arrival_time)
                run.waits.append(metrics.time_in_queue)
                run.first_tokens.append(metrics.first_token_time - group.arrival_time)
                run.seconds = now - begin
    return run


def serve_with_generate(
    model: LlamaForCausalLM | Qwen3ForCausalLM, requests: list[Request], most: int = MOST_AT_ONCE
) -> Run:
    """Serves with `generate()`, in batches of at most `most` requests."""
    run = Run()
    pending = list(requests)
    begin = time.perf_counter()
    while pending:
        _sleep_until(begin + pending[0].arrival)
        now = time.perf_counter() - begin
        batch = [request for request in pending[:most] if request.arrival <= now]
        del pending[: len(batch)]
        longest = max(len(request.prompt) for request in batch)
        missing = [longest - len(request.prompt) for request in batch]
        ids = [[0] * n + request.prompt for n, request in zip(missing, batch, strict=True)]
        model.generate(
            torch.tensor(ids, device=model.device),
            attention_mask=torch.tensor(
                [[0] * n + [1] * (longest - n) for n in missing], device=model.device
            ),
            max_new_tokens=max(request.num_outputs for request in batch),
            do_sample=False,
            pad_token_id=0,
        ).cpu()
        run.seconds = time.perf_counter() - begin
        run.waits += [now - request.arrival for request in batch]
        run.latencies += [run.seconds - request.arrival for request in batch]
    return run


def serve_with_batching(model: LlamaForCausalLM, requests: list[Request]) -> Run:
    """Serves with continuous batching, with the engine's sizes and without GPU features."""
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    sizes = ContinuousBatchingConfig(
        page_size=16,
        num_blocks=1024,
        max_batch_tokens=1024,
        max_requests_per_batch=MOST_AT_ONCE,
        use_cuda_graph=False,
        use_async_batching=False,
        auto_switch_to_flash=False,
    )
    run = Run()
    pending = list(requests)
    by_id: dict[str, Request] = {}
    with model.continuous_batching_context_manager(greedy, True, None, sizes) as manager:
        begin = time.perf_counter()
        while pending or by_id:
            now = time.perf_counter() - begin
            while pending and pending[0].arrival <= now:
                request = pending.pop(0)
                request_id = manager.add_request(request.prompt, max_new_tokens=request.num_outputs)
                by_id[request_id] = request
            until_next = pending[0].arrival - now if pending else 1.0
            result = manager.get_result(timeout=min(until_next, 1.0))
            if result is None and not manager.is_running():
                raise RuntimeError("transformers' continuous batching has ended early")
            if result is not None and result.is_finished():
                request = by_id.pop(result.request_id)
                assert len(result.generated_tokens) == request.num_outputs
                run.seconds = time.perf_counter() - begin
                run.latencies.append(run.seconds - request.arrival)
    return run


def summary(run: Run, requests: list[Request]) -> dict[str, float]:
    """Returns tokens of output per second, and the means of known times in seconds."""
    figures = {"tokens_per_second": sum(request.num_outputs for request in requests) / run.seconds}
    for name in ("latencies", "waits", "first_tokens"):
        if values := getattr(run, name):
            figures[f"mean_{name}"] = mean(values)
    return figures


def _sleep_until(moment: float) -> None:
    time.sleep(max(moment - time.perf_counter(), 0.0))
