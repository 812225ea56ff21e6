"""A tiny model with random weights, and engines that run it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from tests.support.checkpoints import byte_level_tokenizer
from tests.support.running import MakeEngine


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small run faster on one thread, and others may need the second core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a two-layer Llama: 257 tokens, 256 positions, two queries per key head."""
    path = tmp_path_factory.mktemp("tiny-model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        # Weights this wide make the next token depend on all that came before.
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    byte_level_tokenizer().save(str(path / "tokenizer.json"))
    return path


@pytest.fixture
def make_engine(tiny_model: Path) -> MakeEngine:
    """Makes engines of the tiny model with blocks of 4 slots; any setting can be given."""

    def make(*, clock: Callable[[], float] | None = None, **settings: Any) -> LLMEngine:
        defaults: dict[str, Any] = {
            "model": tiny_model,
            "device": "cpu",
            "block_size": 4,
            "num_gpu_blocks": 64,
        }
        config = EngineConfig(**(defaults | settings))
        return LLMEngine(config) if clock is None else LLMEngine(config, clock=clock)

    return make
