"""Text from tokens, in the publisher's process."""

import pytest

from engine_stub.config import DEFAULT_MODEL
from engine_stub.processing.tokenizer import Tokenizer
from seqtop.adapters.vllm import text
from seqtop.adapters.vllm.request import Names, end_status, engine_status, sampling_params
from seqtop.adapters.vllm.text import Texts, TokenizerError
from seqtop.sequence import SequenceStatus

STORY = "Once upon a time a fox called Zoë 🦊 slept — alone."


def test_text_grows_token_by_token_and_never_by_half_a_character() -> None:
    ids = Tokenizer(DEFAULT_MODEL).encode(STORY)
    texts = Texts(str(DEFAULT_MODEL))
    pieces = [texts.append(1, [token_id], skip_special_tokens=True) for token_id in ids]
    assert "".join(pieces).strip() == STORY
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert STORY in texts.prompt(ids)


def test_sequences_do_not_mix() -> None:
    ids = Tokenizer(DEFAULT_MODEL).encode(STORY)
    texts, grown = Texts(str(DEFAULT_MODEL)), ["", ""]
    for token_id in ids:
        for seq_id in (0, 1):
            grown[seq_id] += texts.append(seq_id, [token_id], skip_special_tokens=True)
    assert grown[0] == grown[1]
    assert grown[0].strip() == STORY


def test_without_a_tokenizer_there_is_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TokenizerError, match="cannot be read"):
        Texts("/nonexistent")
    assert text.load(None, None) is None
    assert capsys.readouterr().err == ""
    assert text.load("/nonexistent", None) is None
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_names_are_the_users_own_and_never_given_twice() -> None:
    names = Names(has_random_suffix=True)
    assert names.of("cmpl-12-0-0a1b2c3d") == "cmpl-12-0"
    assert names.of("cmpl-12-0-99999999") == "cmpl-12-0-99999999"
    assert names.of("no suffix here") == "no suffix here"
    assert Names(has_random_suffix=False).of("x-0a1b2c3d") == "x-0a1b2c3d"


def test_statuses_of_v1() -> None:
    assert end_status("FINISHED_LENGTH_CAPPED") is SequenceStatus.FINISHED_LENGTH_CAPPED
    assert end_status("FINISHED_ERROR") is SequenceStatus.FINISHED_ABORTED
    assert engine_status("FINISHED_ERROR") == "FINISHED_ERROR"
    assert engine_status("FINISHED_STOPPED") == engine_status("RUNNING") == ""
    assert engine_status("WAITING_FOR_REMOTE_KVS") == "WAITING_FOR_REMOTE_KVS"


def test_sampling_parameters_that_we_refuse_are_left_out() -> None:
    params = sampling_params({"temperature": 0.5, "max_tokens": 7, "seed": None})
    assert params is not None
    assert (params.temperature, params.max_tokens, params.seed) == (0.5, 7, None)
    assert sampling_params({"top_p": 7.0}) is None
