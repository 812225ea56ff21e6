"""Text comes out whole: every character once, none in halves, nothing left behind."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers

from engine_stub.processing.detokenizer import Detokenizer
from seqtop.sequence import Sequence, token_inputs
from tests.support.byte_strings import ByteStrings


def make_seq(prompt_token_ids: list[int]) -> Sequence:
    return Sequence(0, token_inputs(prompt_token_ids), 16)


def detokenizer_of(tokenizer: Any) -> Detokenizer:
    return Detokenizer(tokenizer)


def deltas(detokenizer: Detokenizer, seq: Sequence, output: list[int]) -> list[str]:
    """The text that each token adds, then the text that the end adds."""
    texts = [""]
    for token_id in output:
        seq.data.append_token_id(token_id, -1.0)
        detokenizer.append(seq)
        assert seq.output_text.startswith(texts[-1])
        texts.append(seq.output_text)
    detokenizer.finish(seq)
    texts.append(seq.output_text)
    return [after[len(before) :] for before, after in pairwise(texts)]


def tokens_of(pieces: list[bytes]) -> tuple[Detokenizer, list[int]]:
    """A detokenizer for these pieces, and the pieces as tokens."""
    vocab = sorted(set(pieces)) or [b"x"]
    return detokenizer_of(ByteStrings(vocab)), [vocab.index(piece) for piece in pieces]


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(edges)]


@given(text=st.text(max_size=30), cuts=st.lists(st.integers(0, 200), max_size=60))
@settings(max_examples=300, deadline=None)
def test_text_cut_anywhere_comes_out_whole(text: str, cuts: list[int]) -> None:
    detokenizer, tokens = tokens_of(split(text.encode(), cuts))
    parts = deltas(detokenizer, make_seq([]), tokens)
    assert "".join(parts) == text
    if "\ufffd" not in text:
        assert parts[-1] == ""
        assert "\ufffd" not in "".join(parts)


@given(data=st.binary(max_size=60), cuts=st.lists(st.integers(0, 200), max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_bytes_cut_anywhere_decode_as_they_would_at_once(data: bytes, cuts: list[int]) -> None:
    detokenizer, tokens = tokens_of(split(data, cuts))
    parts = deltas(detokenizer, make_seq([]), tokens)
    assert "".join(parts) == data.decode("utf-8", errors="replace")


@given(
    pieces=st.lists(st.binary(max_size=3) | st.text(max_size=3).map(str.encode), max_size=20),
    num_prompt=st.integers(0, 8),
    has_special=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_whole_tokens_are_read_as_they_would_be_with_their_neighbours(
    pieces: list[bytes], num_prompt: int, has_special: bool
) -> None:
    vocab = sorted(set(pieces))
    tokens = [vocab.index(piece) for piece in pieces]
    seqs = []
    for is_byte_level in (True, False):
        tokenizer = ByteStrings(vocab, has_special=has_special)
        tokenizer.is_byte_level = is_byte_level
        seq = make_seq(tokens[:num_prompt])
        seqs.append((deltas(detokenizer_of(tokenizer), seq, tokens[num_prompt:]), seq))
    (fast_deltas, fast), (slow_deltas, slow) = seqs
    assert fast_deltas == slow_deltas
    assert (fast.tokens, fast.prefix_offset) == (slow.tokens, slow.prefix_offset)


@given(
    data=st.lists(st.sampled_from([0x80, 0x98, 0x9F, 0xE2, 0xF0]), min_size=20, max_size=120),
    ending=st.sampled_from([b"", b"A", "😀".encode()]),
)
@settings(max_examples=300, deadline=None)
def test_long_runs_of_invalid_bytes(data: list[int], ending: bytes) -> None:
    everything = bytes(data) + ending
    detokenizer, tokens = tokens_of([bytes([byte]) for byte in everything])
    seq = make_seq([])
    parts = deltas(detokenizer, seq, tokens)
    assert "".join(parts) == everything.decode("utf-8", errors="replace")
    # No text waits long: at most one character is held back.
    assert len(parts[-1]) <= 1


def test_no_window_grows_with_the_output_however_little_sense_it_makes() -> None:
    detokenizer, tokens = tokens_of([b"\x80"] * 100)
    seq = make_seq([])
    assert "".join(deltas(detokenizer, seq, tokens)) == "\ufffd" * 100
    assert seq.read_offset - seq.prefix_offset <= 20


@given(prompt=st.binary(max_size=12), output=st.binary(min_size=1, max_size=12))
@settings(max_examples=200, deadline=None)
def test_a_prompt_that_ends_within_a_character_leaves_the_output_alone(
    prompt: bytes, output: bytes
) -> None:
    prompt_text = prompt.decode("utf-8", errors="replace")
    pieces = [bytes([byte]) for byte in prompt + output]
    detokenizer, tokens = tokens_of(pieces)
    seq = make_seq(tokens[: len(prompt)])
    text = "".join(deltas(detokenizer, seq, tokens[len(prompt) :]))
    if prompt_text.endswith("\ufffd"):
        assert text == output.decode("utf-8", errors="replace")
    else:
        assert prompt_text + text == (prompt + output).decode("utf-8", errors="replace")


def test_a_character_comes_with_its_last_byte() -> None:
    detokenizer, tokens = tokens_of([bytes([byte]) for byte in "é€😀".encode()])
    assert deltas(detokenizer, make_seq([]), tokens) == [
        *["", "é"],
        *["", "", "€"],
        *["", "", "", "😀"],
        "",
    ]


def test_half_a_character_at_the_end_is_flushed_as_one_replacement() -> None:
    detokenizer, tokens = tokens_of([b"a", b"\xf0", b"\x9f", b"\x98"])
    assert deltas(detokenizer, make_seq([]), tokens) == ["a", "", "", "", "\ufffd"]


def test_offsets_and_tokens_cover_prompt_and_output() -> None:
    detokenizer, tokens = tokens_of([b"ab", b"c", b"d"])
    seq = make_seq(tokens[:1])
    deltas(detokenizer, seq, tokens[1:])
    assert seq.tokens == ["b'ab'", "b'c'", "b'd'"]
    assert seq.read_offset == 3
    assert seq.output_text == "cd"


def test_ids_beyond_the_tokenizer_have_no_text() -> None:
    """Models may have more embeddings than their tokenizers have tokens."""
    detokenizer, tokens = tokens_of([b"a", b"b"])
    seq = make_seq([7])
    assert "".join(deltas(detokenizer, seq, [*tokens, 99])) == "ab"
    assert seq.tokens == ["", "b'a'", "b'b'", ""]


def metaspace_tokenizer() -> HFTokenizer:
    tokenizer = HFTokenizer(models.BPE(vocab={"▁Hello": 0, "▁world": 1, "!": 2, "▁": 3}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


class Wrapped:
    is_byte_level = False

    def __init__(self, tokenizer: HFTokenizer) -> None:
        self.tokenizer = tokenizer

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def id_to_token(self, token_id: int) -> str | None:
        return self.tokenizer.id_to_token(token_id)


@pytest.mark.parametrize(("prompt", "expected"), [([0], " world! Hello"), ([], "world! Hello")])
def test_spaces_between_words_survive_a_decoder_that_strips_the_first(
    prompt: list[int], expected: str
) -> None:
    detokenizer = detokenizer_of(Wrapped(metaspace_tokenizer()))
    assert "".join(deltas(detokenizer, make_seq(prompt), [1, 2, 0])) == expected
