"""Tiny checkpoints with random weights, one for each thing that the engine's decoder can do.

`make_checkpoint` writes one as transformers would, in several shards; `generate` is what
transformers itself makes of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from engine_stub.spec_decode.draft_head import FILE_NAME, DraftHead

VOCAB_SIZE = 257
MAX_POSITIONS = 256
_KINDS: dict[str, tuple[type, type]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def _rope(rope_type: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, "rope_theta": 10_000.0} | parameters}


CHECKPOINTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": (
        "llama",
        {"tie_word_embeddings": True, "head_dim": 24, "num_key_value_heads": 4},
    ),
    "llama-biased": (
        "llama",
        {
            "attention_bias": True,
            "mlp_bias": True,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1.0,
            **_rope("default", rope_theta=50_000.0),
        },
    ),
    "llama-llama3": (
        "llama",
        _rope(
            "llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "llama-linear": ("llama", _rope("linear", factor=3.0)),
    "llama-dynamic": ("llama", _rope("dynamic", factor=2.0)),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-sliding": ("mistral", {"sliding_window": 13}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-sliding": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 1},
    ),
    "qwen2-yarn": ("qwen2", _rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "qwen3": ("qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3-biased": ("qwen3", {"attention_bias": True}),
}
"""Checkpoints by name: the family, and how its config differs from the usual tiny one."""


def byte_level_tokenizer() -> Tokenizer:
    """One token per byte, after `<eos>` as token 0."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<eos>": 0} | {letter: index for index, letter in enumerate(alphabet, start=1)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


def make_checkpoint(name: str, path: Path, **changes: Any) -> Path:
    """Write the checkpoint `name` of `CHECKPOINTS` to `path`, with a tokenizer.

    Args:
        changes: Of the config, besides the checkpoint's own.
    """
    family, own = CHECKPOINTS[name]
    config_type, model_type = _KINDS[family]
    shape: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": MAX_POSITIONS,
        # Weights this wide make the next token depend on all that came before.
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": 0,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    model: PreTrainedModel = model_type(config_type(**(shape | own | changes)))
    with torch.no_grad():
        # Norms and biases start out as ones and zeros, which would hide that they are missing.
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(path, max_shard_size="60KB")
    byte_level_tokenizer().save(str(path / "tokenizer.json"))
    return path


def add_draft_head(path: Path, hidden_size: int = 64) -> Path:
    """Write a draft head with random weights, which guesses nothing right, to a checkpoint."""
    torch.manual_seed(1)
    save_file(DraftHead(hidden_size).state_dict(), path / FILE_NAME)
    return path


def generate(path: Path, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """The output tokens that transformers gives each prompt: float32, greedy, one at a time."""
    reference: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    reference.eval()
    outputs = []
    for prompt in prompts:
        inputs = torch.tensor([prompt])
        generated = reference.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=max_tokens,
            do_sample=False,
            repetition_penalty=1.0,
            pad_token_id=0,
        )
        outputs.append(generated[0, len(prompt) :].tolist())
    return outputs
