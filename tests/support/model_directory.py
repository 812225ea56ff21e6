"""A directory with a tiny model, to edit and to load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from engine_stub.model_executor.loader import load_model
from engine_stub.model_executor.model import Decoder
from engine_stub.model_executor.model_config import ModelConfig

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


def load(path: Path) -> Decoder:
    return load_model(path, device=torch.device("cpu"), dtype=torch.float32)


def edit_config(path: Path, **changes: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
