"""Checkpoints of every supported family give transformers' greedy tokens, in any setting."""

import random
from pathlib import Path
from typing import Any

import pytest

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from seqtop.sequence import SamplingParams
from tests.support.checkpoints import CHECKPOINTS, generate, make_checkpoint

MAX_TOKENS = 16
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {
        "enable_chunked_prefill": False,
        "enable_prefix_caching": False,
        "max_num_batched_tokens": 2048,
    },
    "chunks and prefix cache": {"max_num_batched_tokens": 11, "max_num_seqs": 4},
}


@pytest.fixture(scope="module", params=CHECKPOINTS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """From 1 to 70 tokens, most of them longer than the sliding windows; half begin alike."""
    rng = random.Random(3)
    shared = [rng.randrange(1, 257) for _ in range(20)]
    own = [[rng.randrange(1, 257) for _ in range(length)] for length in (1, 5, 14, 50, 33, 21)]
    return [shared + prompt if index % 2 else prompt for index, prompt in enumerate(own)]


@pytest.fixture(scope="module")
def expected(checkpoint: Path, prompts: list[list[int]]) -> list[list[int]]:
    return generate(checkpoint, prompts, MAX_TOKENS)


@pytest.mark.parametrize("settings", SETTINGS)
def test_greedy_tokens_are_those_of_transformers(
    checkpoint: Path, prompts: list[list[int]], expected: list[list[int]], settings: str
) -> None:
    assert (checkpoint / "model.safetensors.index.json").is_file()
    engine = LLMEngine(
        EngineConfig(
            model=checkpoint,
            device="cpu",
            dtype="float32",
            block_size=8,
            num_gpu_blocks=256,
            **SETTINGS[settings],
        )
    )
    groups = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS))
    outputs = [list(group.first_seq.get_output_token_ids()) for group in groups]
    assert outputs == expected
    # The tokens depend on the input: otherwise equal ones would say little.
    assert len({tuple(output) for output in outputs}) == len(prompts)
    if settings != "plain":
        assert engine.block_manager.stats.prefix_hits > 0
