"""Tokenizers read from a file."""

import os
from pathlib import Path

import pytest

from seqtop.cli.kv_events import token_decoder
from seqtop.text.tokenizer_file import MAX_BYTES, TokenizerError, read_tokenizer

MODEL = Path(__file__).parents[1] / "engine_stub" / "weights"


def test_a_file_that_is_no_tokenizer_is_called_so() -> None:
    with pytest.raises(TokenizerError, match="cannot be read"):
        token_decoder(str(MODEL / "config.json"))


def test_files_without_end_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.json").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(TokenizerError, match=f"no regular file of at most {MAX_BYTES} bytes"):
            read_tokenizer(path)
