"""The numbers that shape a decoder, read from a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)

# What the nearest relatives of Llama would need in `engine_stub.model` before they could run.
_MISSING_FOR_ARCHITECTURE = {
    "MistralForCausalLM": "sliding-window attention",
    "Qwen2ForCausalLM": "a bias on the query, key and value projections",
    "Qwen3ForCausalLM": "a norm on each query and key head",
    "Gemma2ForCausalLM": "soft-capped logits and norms after each block",
    "MixtralForCausalLM": "a mixture of experts",
}


class UnsupportedModel(ValueError):  # noqa: N818 - the name is part of the engine's interface
    """The model directory describes a model that this engine cannot run."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder of the Llama family; the field names are those of ``config.json``."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: tuple[int, ...]
    architecture: str = "LlamaForCausalLM"
    torch_dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise UnsupportedModel(
                f"{self.num_attention_heads} attention heads cannot share "
                f"{self.num_key_value_heads} key-value heads evenly"
            )

    @classmethod
    def from_pretrained(cls, path: Path) -> Self:
        """Read ``path/config.json``.

        Raises:
            FileNotFoundError: the directory holds no ``config.json``.
            UnsupportedModel: the architecture, or a feature the file switches on, is not
                implemented; the message says which.
        """
        config_path = path / "config.json"
        if not config_path.is_file():
            raise FileNotFoundError(f"{path} is not a model directory: it has no config.json")
        try:
            raw = json.loads(config_path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UnsupportedModel(f"{config_path} is not valid JSON: {error}") from error
        if not isinstance(raw, dict):
            raise UnsupportedModel(f"{config_path} holds no JSON object")
        architecture = _supported_architecture(raw, config_path)
        try:
            heads = raw["num_attention_heads"]
            return cls(
                vocab_size=raw["vocab_size"],
                hidden_size=raw["hidden_size"],
                intermediate_size=raw["intermediate_size"],
                num_hidden_layers=raw["num_hidden_layers"],
                num_attention_heads=heads,
                num_key_value_heads=raw.get("num_key_value_heads") or heads,
                head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
                rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
                rope_theta=_rope_theta(raw, config_path),
                max_position_embeddings=raw["max_position_embeddings"],
                tie_word_embeddings=raw.get("tie_word_embeddings", False),
                bos_token_id=raw.get("bos_token_id"),
                eos_token_id=_as_tuple(raw.get("eos_token_id")),
                architecture=architecture,
                torch_dtype=raw.get("dtype") or raw.get("torch_dtype") or "float32",
            )
        except KeyError as error:
            raise UnsupportedModel(f"{config_path} lacks {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """Return the ``config.json`` from which `from_pretrained` and transformers rebuild this."""
        return {
            "architectures": [self.architecture],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id[0]
            if len(self.eos_token_id) == 1
            else list(self.eos_token_id),
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": self.torch_dtype,
        }


def _supported_architecture(raw: dict[str, Any], config_path: Path) -> str:
    """Return the architecture's name, or say what running this model would need."""
    architectures = raw.get("architectures") or ["an unnamed architecture"]
    for name in architectures:
        if name in SUPPORTED_ARCHITECTURES:
            break
    else:
        name = architectures[0]
        needed = _MISSING_FOR_ARCHITECTURE.get(name)
        raise UnsupportedModel(
            f"{config_path} describes {name}; this engine runs {', '.join(SUPPORTED_ARCHITECTURES)}"
            + (f" ({name} would need {needed})" if needed else "")
        )
    unsupported = {
        "attention_bias": raw.get("attention_bias", False),
        "mlp_bias": raw.get("mlp_bias", False),
        "quantization_config": raw.get("quantization_config"),
        "sliding_window": raw.get("sliding_window"),
        f"hidden_act {raw.get('hidden_act')!r}": raw.get("hidden_act", "silu") != "silu",
    }
    if features := [feature for feature, present in unsupported.items() if present]:
        raise UnsupportedModel(
            f"{config_path} asks for {', '.join(features)}, which this engine does not implement"
        )
    return str(name)


def _rope_theta(raw: dict[str, Any], config_path: Path) -> float:
    """Return the rotary base; transformers 5 keeps it in ``rope_parameters``, 4 beside it."""
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default":
        raise UnsupportedModel(
            f"{config_path} asks for rotary scaling of type {kind!r}; only unscaled rotary "
            "embeddings are implemented"
        )
    return float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0)


def _as_tuple(token_id: int | list[int] | None) -> tuple[int, ...]:
    if token_id is None:
        return ()
    return (token_id,) if isinstance(token_id, int) else tuple(token_id)
