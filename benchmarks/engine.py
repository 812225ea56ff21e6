"""Output tokens per second: the bundled engine against transformers `generate()`.

Both run the same weights (float32, CPU), the same random prompts and the same greedy outputs, in
one process, turn by turn; the best of the rounds counts, since whatever else the machine does only
ever slows a round down. The engine runs as users see it: scheduler, prefix cache and
detokenization on. For scale, `bare` is what the weight matrices' products alone would allow, one
product per weight and step.

    python benchmarks/engine.py                 # a 10 M-parameter Llama with random weights
    python benchmarks/engine.py --bundled       # the model that ships
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.loader import DEFAULT_MODEL
from seqtop.sequence import SamplingParams


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
    print(f"{torch.get_num_threads()} threads, best of {rounds}")
    print(f"{'workload':<26}{'generate()':>12}{'engine':>10}{'ratio':>8}{'bare':>10}{'of bare':>9}")
    for workload in workloads(reference.config.vocab_size):
        run_generate, run_engine = (
            generate_runner(reference, workload),
            engine_runner(path, workload),
        )
        seconds = [(run_generate(), run_engine()) for _ in range(rounds)]
        num_tokens = sum(workload.num_outputs)
        theirs, ours = (num_tokens / min(each) for each in zip(*seconds, strict=True))
        bare = len(workload.prompts) / seconds_of_products(reference, len(workload.prompts))
        print(
            f"{workload.name:<26}{theirs:>12.0f}{ours:>10.0f}{ours / theirs:>8.2f}"
            f"{bare:>10.0f}{ours / bare:>9.0%}"
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


def engine_runner(path: Path, workload: Workload) -> Callable[[], float]:
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
        begin = time.perf_counter()
        for index, (prompt, num_outputs) in enumerate(
            zip(workload.prompts, workload.num_outputs, strict=True)
        ):
            params = SamplingParams(temperature=0.0, max_tokens=num_outputs, ignore_eos=True)
            engine.add_request(str(index), prompt, params)
        while engine.has_unfinished_requests():
            engine.step()
        return time.perf_counter() - begin

    return run


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
