"""Measures the bundled engine: against transformers, bare products, and itself without publishing.

Everything runs the same weights on the CPU in one process, alternately. The best of the rounds
counts, because other load only ever slows a round down. `serving.py` describes the ways of serving.
The engine runs as users run it, with publishing on.

* Requests that arrive at once, each with 128 tokens in and 128 out: tokens of output per second of
  the whole run, prefill included, compared with `generate()`, which runs them as one batch, and
  with transformers' continuous batching. In float32 and, for 32 requests, in bfloat16.
* `of bare` compares the decode steps of such a run with the products of as many rows with every
  weight matrix, one after the other, many times in a row between the rounds: the median step with
  the median of these, and the best with the best, because the speed of memory varies. `plain` are
  torch's products with the weights as in a checkpoint, which `of bare` uses; `packed` those with
  weights in the layout of MKL for so many rows, if torch has MKL.
* A trace of requests of mixed lengths that arrive at random, at first faster than they can be
  served: tokens per second until the last one is complete, and mean seconds from arrival to the
  last token, to the first one, and to the beginning of the prefill.
* The cost of publishing, without and with a viewer: blocks of steps with and without it alternate
  in one engine. Reported are the CPU time of the engine's thread, and the median ratio of the times
  of neighbouring blocks.

    python benchmarks/engine.py                 # a 10 M-parameter Llama with random weights: 3 min
    python benchmarks/engine.py --bundled       # the model that ships
    python benchmarks/engine.py --quick --json engine.json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from listening import subscribed
from serving import (
    ENDPOINT,
    MAX_MODEL_LEN,
    Request,
    all_at_once,
    arrivals,
    published_engine,
    serve_with_batching,
    serve_with_engine,
    serve_with_generate,
    summary,
)
from torch import Tensor
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from engine_stub.config import DEFAULT_MODEL
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publisher_link import PublisherLink
from seqtop.sequence import SamplingParams

_SIZES = (1, 8, 32)
# Steps in a block with or without publishing. A block is many times as long as messages wait at
# most, so that few of them are sent in the pause between blocks.
_STEPS_PER_TURN = {1: 240, 32: 60}
_NUM_PRODUCTS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bundled", action="store_true", help="run the model that ships")
    parser.add_argument("--quick", action="store_true", help="one round of each, a shorter trace")
    parser.add_argument("--rounds", type=int, help="runs of each, taken in turn; 2, quick 1")
    parser.add_argument("--requests", type=int, help="requests in the trace; 64, quick 48")
    parser.add_argument("--rate", type=float, default=32.0, help="arrivals per second")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write all figures to this file"
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 2)
    options.requests = options.requests or (48 if options.quick else 64)
    torch.set_num_threads(options.threads)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        path = DEFAULT_MODEL if options.bundled else make_model(Path(directory))
        figures = measure(path, options)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def make_model(path: Path) -> Path:
    """Writes a Llama of 9.8 M random parameters, with the bundled tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    (path / "tokenizer.json").write_bytes((DEFAULT_MODEL / "tokenizer.json").read_bytes())
    return path


def measure(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Runs everything, and prints the figures."""
    reference = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    # Greedy, and without an early end.
    for name in ("temperature", "top_p", "top_k", "eos_token_id"):
        setattr(reference.generation_config, name, None)
    vocab_size = reference.config.vocab_size
    name = "bundled model" if path == DEFAULT_MODEL else "random weights"
    load = os.getloadavg()
    print(f"{name}, {reference.num_parameters() / 1e6:.1f} M parameters,", end=" ")
    print(f"{torch.get_num_threads()} threads, best of {options.rounds},", end=" ")
    print("load average {:.1f} {:.1f} {:.1f}".format(*load))
    print("\ntokens per second")
    print(
        f"{'all at once':<16}{'engine':>8}{'generate()':>12}{'ratio':>7}{'batching':>10}"
        f"{'ratio':>7}{'step ms':>9}{'plain':>7}{'packed':>8}{'of bare':>9}{'best':>6}"
    )
    return {
        "model": name,
        "parameters": reference.num_parameters(),
        "threads": torch.get_num_threads(),
        "rounds": options.rounds,
        "load_average": load[0],
        "all_at_once": {
            str(size): compare_at_once(
                path, reference, all_at_once(vocab_size, size), options.rounds
            )
            for size in _SIZES
        },
        "bfloat16": {"32": compare_in_bfloat16(path, vocab_size, 32, options.rounds)},
        "trace": compare_on_trace(
            path, reference, arrivals(vocab_size, options.requests, options.rate), options.rounds
        ),
        "publishing": {
            str(size): {
                "no_viewer": cost_of_publishing(path, vocab_size, size, options.rounds),
                "viewer": cost_of_publishing(
                    path, vocab_size, size, options.rounds, has_viewer=True
                ),
            }
            for size in (1, 32)
        },
    }


def compare_at_once(
    path: Path, reference: LlamaForCausalLM, requests: list[Request], rounds: int
) -> dict[str, float]:
    """Measures requests that arrive together, and prints a line."""
    num_tokens = sum(request.num_outputs for request in requests)
    engine, generate, batching = ([float("inf")] for _ in range(3))
    steps: list[float] = []
    plain: list[float] = []
    packed: list[float] = []
    for _ in range(rounds):
        run = serve_with_engine(path, requests)
        engine.append(run.seconds)
        steps += run.decode_steps
        generate.append(serve_with_generate(reference, requests).seconds)
        batching.append(serve_with_batching(reference, requests).seconds)
        plain += seconds_of_products(reference, len(requests), packed=False)
        packed += seconds_of_products(reference, len(requests), packed=True)
    found = {
        "engine_tokens_per_second": num_tokens / min(engine),
        "generate_tokens_per_second": num_tokens / min(generate),
        "batching_tokens_per_second": num_tokens / min(batching),
        "of_generate": min(generate) / min(engine),
        "of_batching": min(batching) / min(engine),
        "decode_step_seconds": median(steps),
        "plain_products_seconds": median(plain),
        "packed_products_seconds": median(packed),
        "of_plain_products": median(plain) / median(steps),
        "of_packed_products": median(packed) / median(steps),
        "best_of_plain_products": min(plain) / min(steps),
    }
    print(
        f"{f'{len(requests)} x (128, 128)':<16}{found['engine_tokens_per_second']:>8.0f}"
        f"{found['generate_tokens_per_second']:>12.0f}{found['of_generate']:>7.2f}"
        f"{found['batching_tokens_per_second']:>10.0f}{found['of_batching']:>7.2f}"
        f"{median(steps) * 1e3:>9.2f}{median(plain) * 1e3:>7.2f}{median(packed) * 1e3:>8.2f}"
        f"{found['of_plain_products']:>9.0%}{found['best_of_plain_products']:>6.0%}",
        flush=True,
    )
    return found


def compare_in_bfloat16(path: Path, vocab_size: int, size: int, rounds: int) -> dict[str, float]:
    """Measures requests that arrive together with weights in bfloat16, and prints a line."""
    reference = LlamaForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
    for name in ("temperature", "top_p", "top_k", "eos_token_id"):
        setattr(reference.generation_config, name, None)
    requests = all_at_once(vocab_size, size)
    num_tokens = sum(request.num_outputs for request in requests)
    engine, generate = [], []
    for _ in range(rounds):
        engine.append(serve_with_engine(path, requests, "bfloat16").seconds)
        generate.append(serve_with_generate(reference, requests).seconds)
    found = {
        "engine_tokens_per_second": num_tokens / min(engine),
        "generate_tokens_per_second": num_tokens / min(generate),
        "of_generate": min(generate) / min(engine),
    }
    print(
        f"{f'{size}, bfloat16':<16}{found['engine_tokens_per_second']:>8.0f}"
        f"{found['generate_tokens_per_second']:>12.0f}{found['of_generate']:>7.2f}",
        flush=True,
    )
    return found


def compare_on_trace(
    path: Path, reference: LlamaForCausalLM, trace: list[Request], rounds: int
) -> dict[str, Any]:
    """Measures requests that arrive over time, and prints a table."""
    ways: dict[str, Callable[[], Any]] = {
        "engine": lambda: serve_with_engine(path, trace),
        "generate": lambda: serve_with_generate(reference, trace),
        "batching": lambda: serve_with_batching(reference, trace),
    }
    runs = [{name: serve() for name, serve in ways.items()} for _ in range(rounds)]
    found = {
        name: summary(min((run[name] for run in runs), key=lambda run: run.seconds), trace)
        for name in ways
    }
    print(
        f"\n{len(trace)} requests arrive in {trace[-1].arrival:.1f} s, 16..256 in, 8..256 out,"
        f" {sum(request.num_outputs for request in trace)} in all"
    )
    print(f"{'':<16}{'tokens/s':>9}{'engine is':>11}{'last':>8}{'first':>8}{'begin':>8}  (mean s)")
    ours = found["engine"]["tokens_per_second"]
    for name, way in found.items():
        way["engine_is"] = ours / way["tokens_per_second"]
        means = [way.get(f"mean_{what}") for what in ("latencies", "first_tokens", "waits")]
        cells = "".join(f"{'' if value is None else f'{value:.2f}':>8}" for value in means)
        print(f"{name:<16}{way['tokens_per_second']:>9.0f}{way['engine_is']:>11.2f}{cells}")
    return {"requests": len(trace), "arrive_in_seconds": trace[-1].arrival, **found}


def cost_of_publishing(
    path: Path, vocab_size: int, size: int, rounds: int, *, has_viewer: bool = False
) -> dict[str, float]:
    """Measures the cost of publishing steps of `size` sequences, and prints a line."""
    rng = random.Random(size)
    ratios: list[float] = []
    cpu = {True: 0.0, False: 0.0}  # of the engine's thread: of publishing, and of the rest
    prompts = [[rng.randrange(2, vocab_size) for _ in range(16)] for _ in range(size)]
    num_steps = _STEPS_PER_TURN[size]
    num_outputs = MAX_MODEL_LEN - 16
    requests = [Request(prompt, num_outputs) for prompt in prompts]
    for _ in range(max(2 * rounds, 12 // size)):
        with ExitStack() as stack:
            engine, link = stack.enter_context(decoding_engine(path, requests))
            if has_viewer:
                stack.enter_context(subscribed(ENDPOINT))
            for _ in range((num_outputs - 4) // (2 * num_steps)):
                seconds = {}
                for publishes in rng.sample((True, False), 2):
                    begin = time.perf_counter()
                    for _ in range(num_steps):
                        worked = time.thread_time()
                        record = engine.step()
                        stepped = time.thread_time()
                        if publishes:
                            link.stepped(record)
                            cpu[False] += stepped - worked
                            cpu[True] += time.thread_time() - stepped
                    seconds[publishes] = time.perf_counter() - begin
                    link.report_state(engine)  # of the steps that were not reported
                    time.sleep(0.02)
                ratios.append(seconds[True] / seconds[False])
            while engine.has_unfinished_requests():
                link.stepped(engine.step())
            assert link.num_dropped == 0
    found = {"of_cpu_time": cpu[True] / cpu[False], "step_ratio": median(ratios)}
    print(
        f"\npublishing, {size} in decode, {'a viewer' if has_viewer else 'no viewer'}:"
        f" {found['of_cpu_time']:.2%} of the CPU time of the engine's thread; a step takes"
        f" {found['step_ratio']:.4f} times as long (median of {len(ratios)})",
        flush=True,
    )
    return found


@contextmanager
def decoding_engine(
    path: Path, requests: list[Request]
) -> Iterator[tuple[LLMEngine, PublisherLink]]:
    """Yields an engine in which all of `requests` decode."""
    with published_engine(path) as (engine, link):
        for index, request in enumerate(requests):
            params = SamplingParams(
                temperature=0.0, max_tokens=request.num_outputs, ignore_eos=True
            )
            for group in engine.add_request(str(index), request.prompt, params):
                link.arrived(group)
        while not all(group.first_seq.get_output_len() for group in engine.seq_groups.values()):
            link.stepped(engine.step())
        yield engine, link


@torch.inference_mode()
def seconds_of_products(model: LlamaForCausalLM, num_rows: int, *, packed: bool) -> list[float]:
    """Returns the times of the products of so many rows with every weight matrix."""
    weights = [module.weight for module in model.modules() if isinstance(module, torch.nn.Linear)]
    inputs = [torch.randn(num_rows, weight.shape[1]) for weight in weights]
    product: Callable[[Tensor, Tensor], Tensor] = linear
    if packed and torch.backends.mkl.is_available():
        pack = torch.ops.mkl._mkl_reorder_linear_weight
        packs = {weight: pack(weight.detach(), num_rows) for weight in weights}

        def product(rows: Tensor, weight: Tensor) -> Tensor:
            out: Tensor = torch.ops.mkl._mkl_linear(rows, packs[weight], weight, None, num_rows)
            return out

    seconds = []
    for _ in range(_NUM_PRODUCTS):
        begin = time.perf_counter()
        for matrix, weight in zip(inputs, weights, strict=True):
            product(matrix, weight)
        seconds.append(time.perf_counter() - begin)
    return seconds


if __name__ == "__main__":
    main()
