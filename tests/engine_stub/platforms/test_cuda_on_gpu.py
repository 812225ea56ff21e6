"""Tests that need a GPU; skipped, with the reason, where there is none."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.model_executor import sampler
from engine_stub.platforms import platform_of, to_device, to_host
from engine_stub.worker.model_output import ModelOutput
from engine_stub.worker.model_runner import ModelRunner
from engine_stub.worker.step_graphs import StepGraphs
from engine_stub.worker.worker import Worker
from seqtop.sequence import SamplingParams, SequenceGroup, SequenceGroupMetadata
from tests.engine_stub.platforms.test_cuda import PARAMS, SETTINGS
from tests.engine_stub.platforms.test_cuda import PROMPTS as TOKENS
from tests.support.checkpoints import add_draft_head, make_checkpoint
from tests.support.running import run, tokens

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"
)

PROMPTS = ["Once upon a time", "Why is the sky blue?", "Hello " * 40, "def main():"]
TINY: dict[str, Any] = {"block_size": 4, "num_gpu_blocks": 200, "max_num_seqs": 8}


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


def graphs_of(engine: LLMEngine) -> StepGraphs:
    assert isinstance(engine.worker, Worker)
    graphs = engine.worker.model_runner.graphs
    assert graphs is not None
    return graphs


def test_greedy_tokens_are_those_of_the_cpu() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    expected = outputs(make_engine("cpu"))
    assert outputs(make_engine("cuda", enforce_eager=True)) == expected
    assert outputs(make_engine("cuda")) == expected


def test_graphs_replay_to_the_same_tokens_again() -> None:
    engine = make_engine("cuda")
    assert [*graphs_of(engine).decodes] == [(size, 1) for size in (4, 2, 1)]
    assert [*graphs_of(engine).others] == [32, 16]
    assert outputs(engine) == outputs(engine)


@pytest.mark.parametrize("settings", [*SETTINGS, "ngram", "draft-head"])
def test_every_way_gives_the_greedy_tokens_of_the_cpu(tmp_path: Path, settings: str) -> None:
    """Attention over windows, chunks, copied and swapped blocks, padded steps and drafts."""
    torch.backends.cuda.matmul.allow_tf32 = False
    checkpoint = add_draft_head(make_checkpoint("mistral-sliding", tmp_path))
    given = SETTINGS.get(settings, {"speculative": settings})
    params = [params for params in PARAMS[:8] if params.temperature == 0]
    outputs = []
    for device in ("cpu", "cuda"):
        engine = make_engine(device, model=checkpoint, **(TINY | given))
        groups: list[SequenceGroup] = []
        for index, prompt in enumerate(TOKENS[:8]):
            groups += engine.add_request(f"r{index}", prompt, params[index % len(params)])
        # Not `run`, which checks every block after each step: memory of a GPU has tens of millions.
        while engine.has_unfinished_requests():
            engine.step()
        outputs.append(tokens(groups))
    assert outputs[0] == outputs[1]


def test_seeded_samples_are_the_same_in_graphs(tmp_path: Path) -> None:
    checkpoint = make_checkpoint("qwen3", tmp_path)
    params = SamplingParams(temperature=0.8, top_p=0.9, seed=4, max_tokens=30, ignore_eos=True)
    outputs = []
    for enforce_eager in (False, True):
        engine = make_engine("cuda", model=checkpoint, enforce_eager=enforce_eager)
        outputs.append(tokens(run(engine, TOKENS[:4], params)[0]))
    assert outputs[0] == outputs[1]


def test_a_full_pool_in_bfloat16_fits_into_memory() -> None:
    settings = {"dtype": "bfloat16", "num_gpu_blocks": None, "max_num_seqs": 64}
    engine = make_engine("cuda", **settings, max_num_batched_tokens=512)
    params = SamplingParams(temperature=0.7, top_p=0.9, logprobs=3, max_tokens=40)
    groups = engine.generate(PROMPTS * 20, params)
    assert all(group.is_finished() for group in groups)
    assert torch.cuda.mem_get_info()[0] > 0


def test_nothing_but_tokens_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a second round, as the first one compiles kernels."""
    engine = make_engine("cuda", model=make_checkpoint("llama", tmp_path), **TINY)
    run(engine, TOKENS[:8], *PARAMS[:8])
    num_reads = 0

    def watched(runner: ModelRunner, groups: list[SequenceGroupMetadata]) -> ModelOutput:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return execute_model(runner, groups)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def unwatched(*tensors: torch.Tensor) -> list[list[Any]]:
        nonlocal num_reads
        num_reads += 1
        torch.cuda.set_sync_debug_mode("default")
        try:
            return to_host(*tensors)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    execute_model = ModelRunner.execute_model
    monkeypatch.setattr(ModelRunner, "execute_model", watched)
    monkeypatch.setattr(sampler, "to_host", unwatched)
    run(engine, TOKENS[:8], *PARAMS[:8])
    assert num_reads > 20


def test_pool_is_sized_from_free_memory_and_auto_finds_the_device() -> None:
    engine = LLMEngine(EngineConfig(device="auto"))
    assert engine.config.device == "cuda"
    assert engine.config.num_gpu_blocks is not None
    assert engine.config.num_gpu_blocks >= 64


def test_forward_time_is_the_devices() -> None:
    platform = platform_of("cuda")
    big = torch.randn(4096, 4096, device="cuda")
    start = platform.mark()
    for _ in range(8):
        big = (big @ big).clamp(-1, 1)
    assert platform.seconds_between(start, platform.mark()) > 0


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
    assert [group.first_seq.get_output_token_ids() for group in staged] == [
        group.first_seq.get_output_token_ids() for group in alone
    ]
