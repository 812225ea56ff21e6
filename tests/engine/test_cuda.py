"""What only a GPU can show; skipped, with the reason, where there is none."""

import pytest
import torch

from engine_stub.config import EngineConfig
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
