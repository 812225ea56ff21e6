"""What only a GPU can show; skipped, with the reason, where there is none."""

import dataclasses

import pytest
import torch

from engine_stub.config import EngineConfig
from engine_stub.cuda import ForwardTimer, to_device
from engine_stub.engine import LLMEngine
from seqtop.sequence import SamplingParams

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device, and torch sees none"
)

PROMPTS = ["Once upon a time", "Why is the sky blue?", "Hello " * 40, "def main():"]


def outputs(device: str) -> list[tuple[int, ...]]:
    engine = LLMEngine(
        EngineConfig(
            device=device,
            dtype="float32",
            num_gpu_blocks=24,
            max_num_seqs=4,
            max_num_batched_tokens=32,
            max_model_len=256,
        )
    )
    params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
    groups = engine.generate(PROMPTS, params)
    return [group.first_seq.get_output_token_ids() for group in groups]


def test_greedy_tokens_are_those_of_the_cpu() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    assert outputs("cuda") == outputs("cpu")


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
