"""Model configurations in the formats of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine_stub.model_executor.model_config import MAX_BYTES, ModelConfig, UnsupportedModel
from tests.support.model_directory import edit_config, load


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


_SLIDING = {"architectures": ["MistralForCausalLM"]}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_hidden_layers": 10**12}, "num_hidden_layers must be an integer from 1 to 1024"),
        ({"hidden_size": 10**18}, "hidden_size"),
        ({"vocab_size": 2**40}, "vocab_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_attention_heads": 0}, "ZeroDivision|division|num_attention_heads"),
        ({"head_dim": -4}, "head_dim"),
        ({"max_position_embeddings": 1e300}, "max_position_embeddings"),
        ({"rope_theta": [1]}, "rope_theta must be a positive number up to 1e.12, got .1.$"),
        ({"rope_theta": 0}, "rope_theta must be a positive number up to 1e.12, got 0$"),
        ({"rope_parameters": {"rope_theta": 0.0}}, "rope_theta must be a positive number"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be an object of parameters, got 'yarn'$"),
        ({"rope_scaling": [1]}, "rope_scaling must be an object of parameters, got .1.$"),
        ({"rope_parameters": 0}, "rope_parameters must be an object of parameters, got 0$"),
        ({"architectures": [["x"]]}, "wrong kind"),
        ({"eos_token_id": 1.5}, "wrong kind"),
        ({"eos_token_id": ["</s>"]}, "a special token must be an id"),
        ({"bos_token_id": -1}, "a special token must be an id"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"rms_norm_eps": 1e308}, "rms_norm_eps"),
        ({"rope_theta": -10_000.0}, "rope_theta"),
        (_SLIDING | {"sliding_window": "4096"}, "sliding_window must be a positive number"),
        (_SLIDING | {"sliding_window": 0}, "sliding_window must be a positive number"),
        (_SLIDING | {"sliding_window": {"a": 1}}, "wrong kind"),
        (_SLIDING | {"sliding_window": 4, "layer_types": ["x"] * 10**6}, "a list of 2 names"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1e308}}, "beta_fast"),
    ],
)
def test_absurd_values_are_named(directory: Path, changes: dict[str, Any], named: str) -> None:
    edit_config(directory, **changes)
    with pytest.raises(UnsupportedModel, match=named):
        load(directory)


def test_files_without_end(directory: Path) -> None:
    (directory / "config.json").write_text("[" * 100_000)
    with pytest.raises(UnsupportedModel, match="not valid JSON"):
        ModelConfig.from_pretrained(directory)
    with (directory / "config.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(UnsupportedModel, match=f"larger than {MAX_BYTES} bytes"):
        ModelConfig.from_pretrained(directory)
