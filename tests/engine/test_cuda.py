"""What only a GPU can show; skipped, with the reason, where there is none."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine_stub.config import EngineConfig
from engine_stub.cuda import ForwardTimer, to_device
from engine_stub.decode_graphs import DecodeGraph, DecodeGraphs
from engine_stub.engine import LLMEngine
from engine_stub.model_runner import ModelRunner
from engine_stub.worker import Worker
from seqtop.sequence import SamplingParams

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"
)

PROMPTS = ["Once upon a time", "Why is the sky blue?", "Hello " * 40, "def main():"]


def make_engine(device: str, **settings: Any) -> LLMEngine:
    defaults: dict[str, Any] = {
        "dtype": "float32",
        "num_gpu_blocks": 24,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        "max_model_len": 256,
    }
    return LLMEngine(EngineConfig(device=device, **(defaults | settings)))


def outputs(engine: LLMEngine) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    groups = engine.generate(PROMPTS, params)
    return [group.first_seq.get_output_token_ids() for group in groups]


def graphs_of(engine: LLMEngine) -> DecodeGraphs:
    assert isinstance(engine.worker, Worker)
    graphs = engine.worker.model_runner.graphs
    assert graphs is not None
    return graphs


def test_greedy_tokens_are_those_of_the_cpu() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    expected = outputs(make_engine("cpu"))
    assert outputs(make_engine("cuda", enforce_eager=True)) == expected
    assert outputs(make_engine("cuda")) == expected


def test_each_shape_is_captured_once() -> None:
    engine = make_engine("cuda")
    first = outputs(engine)
    made = dict(graphs_of(engine).made)
    assert 1 < len(made) <= len(graphs_of(engine).shapes)
    assert all(graph.is_captured for graph in made.values())
    assert outputs(engine) == first
    assert graphs_of(engine).made == made


def test_nothing_waits_for_the_device_before_tokens_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From a step's inputs to its hidden states; graphs are made in a first round."""
    engine = make_engine("cuda")
    first = outputs(engine)
    num_calls = {DecodeGraph: 0, ModelRunner: 0}

    def watched(owner: type, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            num_calls[owner] += 1
            torch.cuda.set_sync_debug_mode("error")
            try:
                return method(*args)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return call

    for owner, name in (
        (DecodeGraph, "load"),
        (DecodeGraph, "run"),
        (ModelRunner, "_batch"),
        (ModelRunner, "_forward"),
    ):
        monkeypatch.setattr(owner, name, watched(owner, getattr(owner, name)))
    assert outputs(engine) == first
    assert num_calls[ModelRunner] > num_calls[DecodeGraph] > 40


def test_pool_is_sized_from_free_memory_and_auto_finds_the_device() -> None:
    engine = LLMEngine(EngineConfig(device="auto"))
    assert engine.config.device == "cuda"
    assert engine.config.num_gpu_blocks is not None
    assert engine.config.num_gpu_blocks >= 64


def test_forward_time_is_the_devices() -> None:
    timer = ForwardTimer(torch.device("cuda"))
    big = torch.randn(4096, 4096, device="cuda")
    timer.start()
    for _ in range(8):
        big = (big @ big).clamp(-1, 1)
    timer.stop()
    assert timer.seconds() > 0


def test_inputs_arrive_from_pinned_memory() -> None:
    device = torch.device("cuda")
    assert to_device([3, 1, 2], device).tolist() == [3, 1, 2]
    assert to_device([], device).dtype == torch.int64


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_stages_on_two_devices_give_the_tokens_of_one() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    config = EngineConfig(device="cuda", dtype="float32", num_gpu_blocks=64)
    alone = LLMEngine(config).generate(PROMPTS, params)
    engine = LLMEngine(dataclasses.replace(config, pipeline_parallel_size=2))
    try:
        staged = engine.generate(PROMPTS, params)
    finally:
        engine.close()
    assert [each.first_seq.get_output_token_ids() for each in staged] == [
        each.first_seq.get_output_token_ids() for each in alone
    ]
