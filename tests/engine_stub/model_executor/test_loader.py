"""What the loader says of model directories that it cannot use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine_stub.model_executor.loader import WeightsError, load_model, save_pretrained
from engine_stub.model_executor.model import Decoder
from engine_stub.model_executor.model_config import ModelConfig, UnsupportedModel

CONFIG = ModelConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    bos_token_id=0,
    eos_token_id=(1,),
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_pretrained(Decoder(CONFIG), tmp_path, torch.float32)
    return tmp_path


def load(path: Path) -> Decoder:
    return load_model(path, device=torch.device("cpu"), dtype=torch.float32)


def edit_config(path: Path, **changes: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_tensors(path: Path, remove: tuple[str, ...] = (), **added: Tensor) -> None:
    file = path / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if name not in remove}
    save_file(tensors | added, file)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM would need a mixture"),
        ({"architectures": ["BertModel"]}, "BertModel; this engine runs LlamaFor.*, Qwen3For"),
        ({"architectures": None}, "unnamed architecture"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "'longrope'.*yarn"),
        ({"rope_scaling": {"type": "linear"}}, "'linear' lacks factor"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "whole heads"),
        ({"architectures": ["Qwen2ForCausalLM"], "mlp_bias": True}, "has no mlp_bias"),
        ({"architectures": ["MistralForCausalLM"], "attention_bias": True}, "no attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"num_key_value_heads": 3}, "cannot share"),
    ],
)
def test_unsupported_models_are_named(directory: Path, changes: dict[str, Any], named: str) -> None:
    edit_config(directory, **changes)
    with pytest.raises(UnsupportedModel, match=named):
        load(directory)


@pytest.mark.parametrize("text", ["{", "[]", '{"architectures": ["LlamaForCausalLM"]}'])
def test_broken_config(directory: Path, text: str) -> None:
    (directory / "config.json").write_text(text)
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        load(directory)


def test_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        load(tmp_path)


def test_no_weights(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors"):
        load(directory)


def test_truncated_weights(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(WeightsError, match="not a readable safetensors file"):
        load(directory)


def test_missing_and_unexpected_tensors_come_in_one_error(directory: Path) -> None:
    gone = ("model.layers.0.self_attn.k_proj.weight", "model.norm.weight")
    edit_tensors(directory, gone, extra=torch.zeros(1))
    with pytest.raises(WeightsError) as caught:
        load(directory)
    assert f"missing: {gone[0]}, {gone[1]}; unexpected: extra" in str(caught.value)


def test_wrong_shape_names_the_tensor(directory: Path) -> None:
    edit_config(directory, intermediate_size=20)
    with pytest.raises(WeightsError, match="gate_up_proj"):
        load(directory)


def test_stored_copies_are_accepted(directory: Path) -> None:
    """Checkpoints may repeat tied embeddings and keep the rotary table of old."""
    edit_tensors(
        directory,
        **{
            "lm_head.weight": torch.zeros(32, 16),
            "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2),
        },
    )
    load(directory)


def test_config_of_either_transformers_generation(directory: Path) -> None:
    edit_config(directory, rope_theta=1.0, rope_parameters={"rope_theta": 5e5})
    assert ModelConfig.from_pretrained(directory).rope_theta == 5e5
    edit_config(directory, rope_theta=7e4, rope_parameters=None, eos_token_id=[3, 4])
    config = ModelConfig.from_pretrained(directory)
    assert config.rope_theta == 7e4
    assert config.eos_token_id == (3, 4)


def test_generation_stops_at_its_own_tokens_too(directory: Path) -> None:
    (directory / "generation_config.json").write_text('{"eos_token_id": [5, 1, 7]}')
    assert ModelConfig.from_pretrained(directory).eos_token_id == (1, 5, 7)
    (directory / "generation_config.json").write_text('{"temperature": 0.6}')
    assert ModelConfig.from_pretrained(directory).eos_token_id == (1,)
