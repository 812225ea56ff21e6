"""Exports a trained model as a directory that transformers and the engine can load."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer

from engine_stub.model_executor.loader import save_pretrained
from engine_stub.model_executor.model import Decoder
from engine_stub.train.tokenise import save_tokenizer


def export(decoder: Decoder, tokenizer: Tokenizer, path: Path) -> None:
    """Writes weights (bfloat16), config, tokenizer and generation config to `path`."""
    config = decoder.config
    save_pretrained(decoder, path, torch.bfloat16)
    save_tokenizer(tokenizer, path, config.max_position_embeddings)
    generation = {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_id),
        "do_sample": True,
        "temperature": 0.8,
        "top_p": 0.95,
    }
    text = json.dumps(generation, indent=2) + "\n"
    (path / "generation_config.json").write_text(text, encoding="utf-8")
