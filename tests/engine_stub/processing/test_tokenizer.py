"""The tokenizer that ships: any text goes in and comes out again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from engine_stub.config import DEFAULT_MODEL
from engine_stub.processing.tokenizer import Tokenizer

TOKENIZER = Tokenizer(DEFAULT_MODEL)


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_special_tokens_frame_text_but_are_not_typed() -> None:
    spelled = "<|begin|>Hi<|end|>"
    ids = TOKENIZER.encode(spelled)
    assert ids[0] == TOKENIZER.bos_token_id
    assert TOKENIZER.special_token_ids.isdisjoint(ids[1:])
    assert TOKENIZER.decode(ids) == spelled
    (end,) = TOKENIZER.eos_token_ids
    assert TOKENIZER.decode([*ids, end]) == spelled
    assert TOKENIZER.decode([*ids, end], skip_special_tokens=False).endswith("<|end|><|end|>")


def test_every_id_has_a_token() -> None:
    tokens = [TOKENIZER.id_to_token(token_id) for token_id in range(TOKENIZER.vocab_size)]
    assert len(set(tokens)) == TOKENIZER.vocab_size == 2048
    # In a byte-level vocabulary, a token of one character is a byte.
    assert sum(len(token) == 1 for token in tokens) == 256
    with pytest.raises(KeyError):
        TOKENIZER.id_to_token(TOKENIZER.vocab_size)


@pytest.mark.parametrize("text", ["Once upon a time", "", "naïve 猫 🐈‍⬛\r\n\t", "def f(x): pass"])
def test_transformers_agrees(text: str) -> None:
    theirs = AutoTokenizer.from_pretrained(DEFAULT_MODEL)
    assert theirs(text)["input_ids"] == TOKENIZER.encode(text)
    assert theirs.bos_token_id == TOKENIZER.bos_token_id
    assert {theirs.eos_token_id} == TOKENIZER.eos_token_ids


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    (tmp_path / "config.json").write_text((DEFAULT_MODEL / "config.json").read_text())
    with pytest.raises(ValueError, match="cannot be read"):
        Tokenizer(tmp_path)
