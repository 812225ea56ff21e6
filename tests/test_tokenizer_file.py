"""Tokenizers read from a file."""

from pathlib import Path

import pytest

from seqtop.cli.kv_events import token_decoder
from seqtop.tokenizer_file import TokenizerError

MODEL = Path(__file__).parents[2] / "engine_stub" / "weights"


def test_a_file_that_is_no_tokenizer_is_called_so() -> None:
    with pytest.raises(TokenizerError, match="cannot be read"):
        token_decoder(str(MODEL / "config.json"))
