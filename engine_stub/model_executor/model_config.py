"""The shape of a decoder, read from a Hugging Face ``config.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

MAX_BYTES = 2**24
"""The largest configuration, template or index that is read. Those of large models have 1 MiB."""

_LARGEST = {
    "vocab_size": 2**24,
    "hidden_size": 2**18,
    "intermediate_size": 2**20,
    "num_hidden_layers": 2**10,
    "num_attention_heads": 2**12,
    "num_key_value_heads": 2**12,
    "head_dim": 2**12,
    "max_position_embeddings": 2**26,
}
"""Far larger than in any model; a larger size would only take memory or time."""

SUPPORTED_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Architectures that `engine_stub.model_executor.model` implements, with their ``model_type``."""

# The features that `engine_stub.model_executor.model` lacks for other architectures.
_MISSING_FOR_ARCHITECTURE = {
    "GemmaForCausalLM": "GELU and embeddings scaled by the hidden size",
    "Gemma2ForCausalLM": "soft-capped logits and norms after each block",
    "Gemma3ForCausalLM": "norms after each block and another rotary base in sliding layers",
    "MixtralForCausalLM": "a mixture of experts",
    "Phi3ForCausalLM": "fused projections in the checkpoint and longrope scaling",
    "Qwen2MoeForCausalLM": "a mixture of experts",
    "Qwen3MoeForCausalLM": "a mixture of experts",
    "DeepseekV3ForCausalLM": "latent attention and a mixture of experts",
    "GPT2LMHeadModel": "learned positions and layer norms",
    "GPTNeoXForCausalLM": "layer norms, and attention beside the MLP instead of before it",
    "GraniteForCausalLM": "factors of embeddings, attention, residuals and logits",
    "Olmo2ForCausalLM": "norms after each block, and of all heads of queries and keys together",
    "OPTForCausalLM": "learned positions, layer norms and ReLU",
    "PhiForCausalLM": "layer norms, and attention beside the MLP instead of before it",
    "SmolLM3ForCausalLM": "layers without rotary embeddings",
}

_REQUIRED_OF_ROPE_TYPE = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": (),
}
"""Rotary scalings that `rotary` implements, and the fields each requires."""


def read_model_file(path: Path) -> str:
    """Returns the text of a small file of a model directory, which is untrusted.

    Raises:
        ValueError: The file is larger than `MAX_BYTES`, or is not UTF-8.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    return content.decode()


class UnsupportedModel(ValueError):  # noqa: N818 - the name is part of the engine's interface
    """The model directory describes a model that this engine cannot run."""


@dataclass(frozen=True)
class RopeScaling:
    """A scaling of rotary frequencies; the field names are those of ``rope_parameters``."""

    rope_type: str = "default"
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder of the Llama family; the field names are those of ``config.json``.

    Attributes:
        eos_token_id: The tokens that end an output: the config's, then the generation config's.
        qkv_bias: Whether the projection of queries, keys and values has a bias.
        o_bias: Whether the projection of attention's output has a bias.
        qk_norm: Whether each head of queries and keys is normalized before it is rotated.
        layer_windows: For each layer, the number of tokens that attention sees, the token itself
            included; None for all. Empty if no layer has a window.
    """

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
    rope_scaling: RopeScaling = RopeScaling()
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    layer_windows: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        for name in _LARGEST:
            _check_size(name, getattr(self, name))
        for name in ("rms_norm_eps", "rope_theta"):
            _check_number(name, getattr(self, name), 1e12)
        for token_id in (self.bos_token_id, *self.eos_token_id):
            if token_id is not None and (type(token_id) is not int or not 0 <= token_id < 2**31):
                raise UnsupportedModel(f"a special token must be an id, got {token_id!r:.40}")
        for window in {*self.layer_windows} - {None}:
            if type(window) is not int or not 1 <= window <= _LARGEST["max_position_embeddings"]:
                raise UnsupportedModel(
                    f"sliding_window must be a positive number of tokens, got {window!r:.40}"
                )
        if self.num_attention_heads % self.num_key_value_heads:
            raise UnsupportedModel(
                f"{self.num_attention_heads} attention heads cannot share "
                f"{self.num_key_value_heads} key-value heads evenly"
            )

    @classmethod
    def from_pretrained(cls, path: Path) -> Self:
        """Reads ``path/config.json`` and the stop tokens of ``path/generation_config.json``.

        Raises:
            FileNotFoundError: The directory contains no ``config.json``.
            UnsupportedModel: The architecture, or a feature that the file enables, is not
                implemented; the message names it.
        """
        config_path = path / "config.json"
        if not config_path.is_file():
            raise FileNotFoundError(f"{path} is not a model directory: it has no config.json")
        raw = _read_object(config_path)
        try:
            architecture = _supported_architecture(raw, config_path)
            attention_bias = bool(raw.get("attention_bias", False))
            heads = raw["num_attention_heads"]
            _check_size("num_hidden_layers", raw["num_hidden_layers"])  # before a list is made
            return cls(
                vocab_size=raw["vocab_size"],
                hidden_size=raw["hidden_size"],
                intermediate_size=raw["intermediate_size"],
                num_hidden_layers=raw["num_hidden_layers"],
                num_attention_heads=heads,
                num_key_value_heads=raw.get("num_key_value_heads") or heads,
                head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
                rms_norm_eps=raw.get("rms_norm_eps", 1e-6),
                rope_theta=_rope_theta(raw),
                max_position_embeddings=raw["max_position_embeddings"],
                tie_word_embeddings=raw.get("tie_word_embeddings", False),
                bos_token_id=raw.get("bos_token_id"),
                eos_token_id=_eos_token_ids(raw, path),
                architecture=architecture,
                torch_dtype=raw.get("dtype") or raw.get("torch_dtype") or "float32",
                rope_scaling=_rope_scaling(raw, config_path),
                qkv_bias=architecture == "Qwen2ForCausalLM" or attention_bias,
                o_bias=architecture != "Qwen2ForCausalLM" and attention_bias,
                mlp_bias=bool(raw.get("mlp_bias", False)),
                qk_norm=architecture == "Qwen3ForCausalLM",
                layer_windows=_layer_windows(raw, architecture),
            )
        except KeyError as error:
            raise UnsupportedModel(f"{config_path} lacks {error}") from error
        except UnsupportedModel:
            raise
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            raise UnsupportedModel(f"{config_path} has a value of a wrong kind: {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """Returns the contents of a ``config.json`` for `from_pretrained` and transformers.

        Supports only a Llama without scaled rotary embeddings, as `engine_stub.train` makes it.
        """
        return {
            "architectures": [self.architecture],
            "model_type": SUPPORTED_ARCHITECTURES[self.architecture],
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
            "attention_bias": self.qkv_bias,
            "mlp_bias": self.mlp_bias,
            "torch_dtype": self.torch_dtype,
        }


def _check_size(name: str, value: object) -> None:
    """Raises `UnsupportedModel` for a value that is no integer from 1 to the largest allowed."""
    largest = _LARGEST[name]
    if type(value) is not int or not 1 <= value <= largest:
        raise UnsupportedModel(f"{name} must be an integer from 1 to {largest}, got {value!r:.40}")


def _check_number(name: str, value: object, largest: float) -> None:
    """Raises `UnsupportedModel` for a value that is no positive number up to the largest."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= largest:
        raise UnsupportedModel(
            f"{name} must be a positive number up to {largest:g}, got {value!r:.40}"
        )


def _supported_architecture(raw: dict[str, Any], config_path: Path) -> str:
    """Returns the architecture's name; raises UnsupportedModel if it is not implemented."""
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
    # Only the code of Llama (and, for attention, of Qwen3) reads these biases from the config.
    if raw.get("mlp_bias") and name != "LlamaForCausalLM":
        raise UnsupportedModel(f"{config_path}: {name} has no mlp_bias")
    if raw.get("attention_bias") and name not in ("LlamaForCausalLM", "Qwen3ForCausalLM"):
        raise UnsupportedModel(f"{config_path}: {name} has no attention_bias")
    unsupported = {
        "quantization_config": raw.get("quantization_config"),
        f"hidden_act {raw.get('hidden_act')!r}": raw.get("hidden_act", "silu") != "silu",
    }
    if features := [feature for feature, present in unsupported.items() if present]:
        raise UnsupportedModel(
            f"{config_path} asks for {', '.join(features)}, which this engine does not implement"
        )
    return str(name)


def _rope_parameters(raw: dict[str, Any]) -> dict[str, Any]:
    """Returns ``rope_parameters`` of transformers 5, or ``rope_scaling`` of transformers 4."""
    for name in ("rope_scaling", "rope_parameters"):
        parameters = raw.get(name)
        if parameters is not None and not isinstance(parameters, dict):
            raise UnsupportedModel(
                f"{name} must be an object of parameters, got {parameters!r:.40}"
            )
        if parameters:
            return parameters
    return {}


def _rope_theta(raw: dict[str, Any]) -> float:
    """Returns the rotary base, which transformers 4 stores beside the other parameters."""
    for theta in (_rope_parameters(raw).get("rope_theta"), raw.get("rope_theta")):
        if theta is not None:
            _check_number("rope_theta", theta, 1e12)
            return float(theta)
    return 10_000.0


def _rope_scaling(raw: dict[str, Any], config_path: Path) -> RopeScaling:
    parameters = _rope_parameters(raw)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in _REQUIRED_OF_ROPE_TYPE:
        raise UnsupportedModel(
            f"{config_path} asks for rotary scaling of type {kind!r}; this engine implements "
            f"{', '.join(_REQUIRED_OF_ROPE_TYPE)}"
        )
    partial = parameters.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise UnsupportedModel(
            f"{config_path} asks for a partial_rotary_factor of {partial}; this engine rotates "
            "whole heads only"
        )
    if kind == "default":
        return RopeScaling()
    names = {field.name for field in fields(RopeScaling)}
    given = {name: value for name, value in parameters.items() if name in names}
    given = {name: value for name, value in given.items() if value is not None}
    length = raw["max_position_embeddings"]
    original = raw.get("original_max_position_embeddings") or given.get(
        "original_max_position_embeddings", length
    )
    if missing := [name for name in _REQUIRED_OF_ROPE_TYPE[kind] if name not in given]:
        raise UnsupportedModel(f"{config_path}: rotary scaling {kind!r} lacks {missing[0]}")
    # Without a factor, YaRN scales by the ratio of the new to the original length.
    given.setdefault("factor", length / original)
    _check_size("max_position_embeddings", original)
    for name, value in given.items():
        if name not in ("rope_type", "truncate"):
            _check_number(name, value, 1e12)
    return RopeScaling(**given | {"rope_type": kind, "original_max_position_embeddings": original})


def _layer_windows(raw: dict[str, Any], architecture: str) -> tuple[int | None, ...]:
    """Returns each layer's sliding window; empty if no layer has one."""
    window, num_layers = raw.get("sliding_window"), raw["num_hidden_layers"]
    is_qwen = architecture.startswith("Qwen")
    if window is None or architecture == "LlamaForCausalLM":
        return ()
    if is_qwen and not raw.get("use_sliding_window", False):
        return ()
    if layer_types := raw.get("layer_types"):
        if not isinstance(layer_types, list) or len(layer_types) != num_layers:
            raise UnsupportedModel(f"layer_types must be a list of {num_layers} names")
        sliding = [kind == "sliding_attention" for kind in layer_types]
    else:
        first = raw.get("max_window_layers", 28) if is_qwen else 0
        sliding = [layer >= first for layer in range(num_layers)]
    return tuple(window if slides else None for slides in sliding) if any(sliding) else ()


def _eos_token_ids(raw: dict[str, Any], path: Path) -> tuple[int, ...]:
    """Returns the end-of-sequence tokens of the config and of the generation config."""
    own = _as_tuple(raw.get("eos_token_id"))
    generation = path / "generation_config.json"
    if not generation.is_file():
        return own
    more = _as_tuple(_read_object(generation).get("eos_token_id"))
    return (*own, *(token_id for token_id in more if token_id not in own))


def _read_object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(read_model_file(path))
    except (ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path} is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise UnsupportedModel(f"{path} holds no JSON object")
    return raw


def _as_tuple(token_id: int | list[int] | None) -> tuple[int, ...]:
    if token_id is None:
        return ()
    return (token_id,) if isinstance(token_id, int) else tuple(token_id)
