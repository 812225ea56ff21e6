"""Measures the bundled engine on a GPU: with and without graphs, published and not.

Requests arrive at once, and at random.

    python -m benchmarks.gpu            # with most of the GPU's memory
    python -m benchmarks.gpu --tiny     # a small model on the CPU: whether it runs

The model has the shape of Qwen3-0.6B and random weights. Requests that arrive at once have 128
tokens in and 128 out. The peer of the engine is transformers' `generate()` with the same weights,
which runs them as one batch. Steps are wall time, medians of those in which all requests decode.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from benchmarks import running
from benchmarks.figure import Figure, Findings, Limit, middle
from benchmarks.serving import (
    Request,
    all_at_once,
    arrivals,
    published_engine,
    serve_with_engine,
    serve_with_generate,
)
from engine_stub.config import DEFAULT_MODEL
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.publisher_link import PublisherLink
from seqtop.sequence import SamplingParams

TITLE = "The bundled engine on a GPU"
SIZES = (1, 8, 32, 256)
NUM_ARRIVALS = 256
RATE = 64.0
"""Requests that arrive in a second."""

_VOCAB = 2_048
"""The tokens of the bundled tokenizer, of which prompts are."""


def measure(*, tiny: bool = False) -> Findings:
    """Returns the figures of one run.

    Raises:
        RuntimeError: There is no CUDA device.
    """
    if not tiny and not torch.cuda.is_available():
        raise RuntimeError("there is no CUDA device; --tiny runs a small model on the CPU")
    logging.disable_progress_bar()
    sizes, device = (SIZES[:2], "cpu") if tiny else (SIZES, "cuda")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        model = _make_model(path, device, tiny=tiny)
        settings: dict[str, Any] = {
            "device": device,
            "max_num_seqs": max(sizes),
            "max_num_batched_tokens": 8_192,
            "gpu_memory_utilization": 0.5,  # `generate()` needs some, too
            "enable_prefix_caching": False,  # the same prompts are run again
        }
        dtype = str(model.dtype).removeprefix("torch.")
        figures: list[Figure] = []
        for eager in (False, True):
            figures += _of_engine(model, path, dtype, sizes, enforce_eager=eager, **settings)
            gc.collect()  # the engine, whose pool the next one needs
            torch.cuda.empty_cache()
        trace = arrivals(_VOCAB, 4 if tiny else NUM_ARRIVALS, RATE)
        num_tokens = sum(request.num_outputs for request in trace)
        ours = num_tokens / serve_with_engine(path, trace, dtype, **settings).seconds
        theirs = num_tokens / serve_with_generate(model, trace, max(sizes)).seconds
    what = f"{len(trace)} requests that arrive at random, {RATE:g} a second"
    figures.append(_beside_generate(what, "wall, one run", ours, theirs))
    return Findings(figures)


def _make_model(path: Path, device: str, *, tiny: bool) -> Qwen3ForCausalLM:
    """Writes a model of random weights, with the bundled tokenizer, and returns it."""
    shape: dict[str, int] = {
        "vocab_size": 151_936,
        "hidden_size": 1_024,
        "intermediate_size": 3_072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    if tiny:
        shape |= {"vocab_size": 2_048, "hidden_size": 64, "intermediate_size": 128}
        shape |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        shape |= {"head_dim": 16}
    torch.manual_seed(0)
    config = Qwen3Config(
        **shape,
        max_position_embeddings=40_960,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )
    with torch.device(device):
        model = Qwen3ForCausalLM(config).eval()
    if device == "cuda":
        model = model.to(torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16)
    model.save_pretrained(path)
    (path / "tokenizer.json").write_bytes((DEFAULT_MODEL / "tokenizer.json").read_bytes())
    model.generation_config.eos_token_id = None  # no early end
    return model


def _of_engine(
    model: Qwen3ForCausalLM, path: Path, dtype: str, sizes: tuple[int, ...], **settings: Any
) -> list[Figure]:
    """Measures requests that arrive together in a new engine."""
    figures: list[Figure] = []
    mode = "eager" if settings["enforce_eager"] else "graphs"
    with published_engine(path, dtype, **settings) as (engine, link):
        for size in sizes:
            figures += _at_once(model, engine, link, size, mode)
    return figures


def _at_once(
    model: Qwen3ForCausalLM, engine: LLMEngine, link: PublisherLink, size: int, mode: str
) -> Iterator[Figure]:
    """Measures `size` requests that arrive together, without and with publishing."""
    requests = all_at_once(_VOCAB, size)
    num_tokens = sum(request.num_outputs for request in requests)
    _run(engine, None, requests)  # captures the graphs
    _, steps, on_device = _run(engine, None, requests)
    link.report_state(engine)  # of the steps that were not reported
    seconds, published, _ = _run(engine, link, requests)
    if link.num_dropped:
        raise RuntimeError(f"{link.num_dropped} reports were dropped")
    what = f"{size} at once, {mode}"
    yield Figure(
        what=f"{what}: a decode step",
        measured=f"wall, median of {len(steps)}",
        value=middle(steps) * 1e3,
        unit="ms",
        peer="of it the forward pass on the device",
        peer_value=middle(on_device) * 1e3,
        ratio=middle(on_device) / middle(steps),
        ratio_unit="%",
    )
    yield Figure(
        what=f"{what}: a decode step that is published",
        measured=f"wall, median of {len(published)}",
        value=middle(published) * 1e3,
        unit="ms",
        peer="a step that is not",
        peer_value=middle(steps) * 1e3,
        ratio=middle(published) / middle(steps),
        ratio_limit=Limit(1.02),
    )
    serve_with_generate(model, requests, size)
    theirs = num_tokens / serve_with_generate(model, requests, size).seconds
    yield _beside_generate(what, "wall, one run, published", num_tokens / seconds, theirs)


def _beside_generate(what: str, measured: str, ours: float, theirs: float) -> Figure:
    """Returns a figure of tokens per second."""
    return Figure(
        what=what,
        measured=measured,
        value=ours,
        unit="tokens/s",
        peer="transformers' generate()",
        peer_value=theirs,
        ratio=ours / theirs,
    )


def _run(
    engine: LLMEngine, link: PublisherLink | None, requests: list[Request]
) -> tuple[float, list[float], list[float]]:
    """Returns the seconds of the whole run, of its decode steps, and of those on the device."""
    steps: list[float] = []
    on_device: list[float] = []
    began = time.perf_counter()
    for index, request in enumerate(requests):
        params = SamplingParams(temperature=0.0, max_tokens=request.num_outputs, ignore_eos=True)
        groups = engine.add_request(f"{began}-{index}", request.prompt, params)
        if link is not None:
            for group in groups:
                link.arrived(group)
    while engine.has_unfinished_requests():
        step_began = time.perf_counter()
        record = engine.step()
        if link is not None:
            link.stepped(record)
        if record.num_decode_tokens == len(requests) and not record.num_prefill_tokens:
            steps.append(time.perf_counter() - step_began)
            on_device.append(record.model_forward_time)
    return time.perf_counter() - began, steps, on_device


if __name__ == "__main__":
    running.alone(measure)
