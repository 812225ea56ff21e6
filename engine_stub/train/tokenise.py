"""Trains the byte-level BPE tokenizer on generated stories."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from engine_stub.train.stories import draw_document

BOS, EOS = "<|begin|>", "<|end|>"
BOS_ID, EOS_ID = 0, 1


def train_tokenizer(vocab_size: int, documents: int, seed: int) -> Tokenizer:
    """Returns a byte-level BPE tokenizer of `vocab_size` tokens, learnt from `documents` stories.

    All 256 bytes are tokens, so that any text can be encoded. `BOS` precedes each text.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    rng = Random(f"{seed}/tokenizer")
    drawn = (draw_document(rng) for _ in range(documents))
    tokenizer.train_from_iterator((doc.lead_in + doc.story for doc in drawn), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, path: Path, max_length: int) -> None:
    """Writes ``tokenizer.json`` and the ``tokenizer_config.json`` that transformers reads."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    text = json.dumps(config, indent=2) + "\n"
    (path / "tokenizer_config.json").write_text(text, encoding="utf-8")
