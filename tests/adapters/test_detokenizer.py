"""Text from tokens, in the publisher's process."""

import pytest

from engine_stub.config import DEFAULT_MODEL
from engine_stub.processing.tokenizer import Tokenizer
from seqtop.adapters.detokenizer import (
    StreamDetokenizer,
    load_detokenizer,
)
from seqtop.text.tokenizer_file import TokenizerError

STORY = "Once upon a time a fox called Zoë 🦊 slept — alone."


def test_text_grows_token_by_token_and_never_by_half_a_character() -> None:
    ids = Tokenizer(DEFAULT_MODEL).encode(STORY)
    detokenizer = StreamDetokenizer(str(DEFAULT_MODEL))
    pieces = [
        detokenizer.decode_output(1, [token_id], skip_special_tokens=True) for token_id in ids
    ]
    assert "".join(pieces).strip() == STORY
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert STORY in detokenizer.decode_prompt(ids)


def test_sequences_do_not_mix() -> None:
    ids = Tokenizer(DEFAULT_MODEL).encode(STORY)
    detokenizer, grown = StreamDetokenizer(str(DEFAULT_MODEL)), ["", ""]
    for token_id in ids:
        for seq_id in (0, 1):
            grown[seq_id] += detokenizer.decode_output(seq_id, [token_id], skip_special_tokens=True)
    assert grown[0] == grown[1]
    assert grown[0].strip() == STORY


def test_without_a_tokenizer_there_is_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TokenizerError, match="cannot be read"):
        StreamDetokenizer("/nonexistent")
    assert load_detokenizer(None, None) is None
    assert capsys.readouterr().err == ""
    assert load_detokenizer("/nonexistent", None) is None
    assert len(capsys.readouterr().err.splitlines()) == 1
