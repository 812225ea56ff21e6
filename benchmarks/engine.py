"""Output tokens per second: the bundled engine against transformers.

`generate()` runs a workload as one batch, which waits for its longest output; transformers' own
continuous batching (`batching`) and the engine let sequences go when they are done. All run the
same weights (float32, CPU), the same random prompts and the same greedy outputs, in one process,
turn by turn; the best of the rounds counts, since whatever else the machine does only ever slows a
round down. The engine runs as users see it: scheduler, prefix cache, detokenization and publishing
on; `silent` is the ratio to its speed without publishing. For scale, `of bare` compares with what
the weight matrices' products alone would allow, one product per weight and step.

    python benchmarks/engine.py                 # a 10 M-parameter Llama with random weights
    python benchmarks/engine.py --bundled       # the model that ships
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import linear
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.utils import logging

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.loader import DEFAULT_MODEL
from engine_stub.publishing import StepPublisher, engine_info
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.wire.publisher import Publisher


@dataclass(frozen=True)
class Workload:
    """Prompts that all arrive at once, and how many tokens each is to produce."""

    name: str
    prompts: list[list[int]]
    num_outputs: list[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bundled", action="store_true", help="run the model that ships")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, taken in turn")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as directory:
        path = DEFAULT_MODEL if arguments.bundled else make_model(Path(directory))
        compare(path, arguments.rounds)


def make_model(path: Path) -> Path:
    """Write a Llama of 9.8 M parameters; its tokenizer is the bundled one, for what it is worth."""
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


def compare(path: Path, rounds: int) -> None:
    """Print a line per workload."""
    reference = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    # Greedy, and as long as the workload says.
    for name in ("temperature", "top_p", "top_k", "eos_token_id"):
        setattr(reference.generation_config, name, None)
    name = "bundled model" if path == DEFAULT_MODEL else "random weights"
    print(f"{name}, {reference.num_parameters() / 1e6:.1f} M parameters,", end=" ")
    print(f"{torch.get_num_threads()} threads, best of {rounds},", end=" ")
    print("load average {:.1f} {:.1f} {:.1f}".format(*os.getloadavg()))
    print("tokens per second, and the engine's in relation to others")
    print(
        f"{'workload':<26}{'engine':>8}{'generate()':>12}{'ratio':>8}{'batching':>10}{'ratio':>8}"
        f"{'of bare':>9}{'silent':>8}"
    )
    for workload in workloads(reference.config.vocab_size):
        runners = (
            engine_runner(path, workload, publishes=True),
            generate_runner(reference, workload),
            batching_runner(reference, workload),
            engine_runner(path, workload, publishes=False),
        )
        seconds = [[run() for run in runners] for _ in range(rounds)]
        num_tokens = sum(workload.num_outputs)
        ours, generate, batching, silent = (
            num_tokens / min(each) for each in zip(*seconds, strict=True)
        )
        bare = len(workload.prompts) / seconds_of_products(reference, len(workload.prompts))
        print(
            f"{workload.name:<26}{ours:>8.0f}{generate:>12.0f}{ours / generate:>8.2f}"
            f"{batching:>10.0f}{ours / batching:>8.2f}{ours / bare:>9.0%}{ours / silent:>8.3f}",
            flush=True,
        )


def workloads(vocab_size: int) -> list[Workload]:
    rng = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [rng.randrange(2, vocab_size) for _ in range(length)]

    even = [
        Workload(f"{size} x (128 in, 128 out)", [prompt(128) for _ in range(size)], [128] * size)
        for size in (1, 8, 32)
    ]
    mixed = Workload(
        "32 x (128 in, 8..256 out)",
        [prompt(128) for _ in range(32)],
        [rng.randrange(8, 257) for _ in range(32)],
    )
    return [*even, mixed]


def generate_runner(model: LlamaForCausalLM, workload: Workload) -> Callable[[], float]:
    """Returns a function that runs the workload as one batch, to its longest output."""
    inputs = torch.tensor(workload.prompts)
    longest = max(workload.num_outputs)

    def run() -> float:
        begin = time.perf_counter()
        model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=longest,
            do_sample=False,
            pad_token_id=0,
        )
        return time.perf_counter() - begin

    return run


def batching_runner(model: LlamaForCausalLM, workload: Workload) -> Callable[[], float]:
    """Returns a function that runs the workload in transformers' continuous batching."""
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    # The sizes of the engine; what is for GPUs only is off.
    sizes = ContinuousBatchingConfig(
        page_size=16,
        num_blocks=1024,
        max_batch_tokens=1024,
        max_requests_per_batch=32,
        use_cuda_graph=False,
        use_async_batching=False,
        auto_switch_to_flash=False,
    )

    def run() -> float:
        with model.continuous_batching_context_manager(greedy, True, None, sizes) as manager:
            begin = time.perf_counter()
            for prompt, num_outputs in zip(workload.prompts, workload.num_outputs, strict=True):
                manager.add_request(prompt, max_new_tokens=num_outputs)
            finished: list[int] = []
            while len(finished) < len(workload.prompts):
                result = manager.get_result(timeout=1)
                if result is None and not manager.is_running():
                    raise RuntimeError("transformers' continuous batching has ended early")
                if result is not None and result.is_finished():
                    finished.append(len(result.generated_tokens))
            seconds = time.perf_counter() - begin
        assert sorted(finished) == sorted(workload.num_outputs)
        return seconds

    return run


def engine_runner(path: Path, workload: Workload, *, publishes: bool) -> Callable[[], float]:
    """Returns a function that runs the workload in a new engine, whose start does not count."""

    def run() -> float:
        engine = LLMEngine(
            EngineConfig(
                model=path,
                device="cpu",
                dtype="float32",
                max_num_seqs=32,
                max_num_batched_tokens=1024,
                max_model_len=512,
            )
        )
        if not publishes:
            return seconds_of(engine, workload, None)
        info = engine_info(engine, engine_id="benchmark", control=False)
        with Publisher("tcp://127.0.0.1:5997", info, EngineState()) as publisher:
            return seconds_of(engine, workload, StepPublisher(publisher))

    return run


def seconds_of(engine: LLMEngine, workload: Workload, publisher: StepPublisher | None) -> float:
    """Seconds that the engine takes from the first request to the last token."""
    begin = time.perf_counter()
    for index, (prompt, num_outputs) in enumerate(
        zip(workload.prompts, workload.num_outputs, strict=True)
    ):
        params = SamplingParams(temperature=0.0, max_tokens=num_outputs, ignore_eos=True)
        for group in engine.add_request(str(index), prompt, params):
            if publisher:
                publisher.arrived(group)
    while engine.has_unfinished_requests():
        record = engine.step()
        if publisher:
            publisher.stepped(record)
    return time.perf_counter() - begin


@torch.inference_mode()
def seconds_of_products(model: LlamaForCausalLM, batch_size: int) -> float:
    """Time of one decode step's products of a batch with every weight matrix, best of 20."""
    weights = [each.weight for each in model.modules() if isinstance(each, torch.nn.Linear)]
    inputs = [torch.randn(batch_size, weight.shape[1]) for weight in weights]
    best = float("inf")
    for _ in range(20):
        begin = time.perf_counter()
        for each, weight in zip(inputs, weights, strict=True):
            linear(each, weight)
        best = min(best, time.perf_counter() - begin)
    return best


if __name__ == "__main__":
    main()
