"""Incremental detokenization that never outputs half a character.

A character may take several byte-level tokens. Until its last byte has arrived, decoding ends in
the replacement character U+FFFD, which is therefore withheld. It is output once a later token shows
that the bytes before it are invalid, or when the sequence ends.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

from engine_stub.processing.tokenizer import Tokenizer
from seqtop.sequence import Sequence

_REPLACEMENT = "\ufffd"
# Tokens decoded again with the new ones when the window does not start at the end of a character.
# A character has at most four bytes, so that decoding is synchronized again after this many.
_CONTEXT = 6
# The longest window without the end of a character; then its start is moved.
_LONGEST_WINDOW = 16


class _Token(NamedTuple):
    """A single token.

    Attributes:
        name: Its spelling in the vocabulary; empty if it has none, because a model may have more
            embeddings than its tokenizer has tokens.
        text: Its decoded text.
        plain_text: Its decoded text if special tokens are skipped.
        is_whole: True if it has no part of a character.
        is_open: True if it ends within a character.
    """

    name: str
    text: str
    plain_text: str
    is_whole: bool
    is_open: bool


class Detokenizer:
    """Extends `Sequence.output_text` by the text of new tokens.

    ``tokens[:read_offset]`` of a sequence are decoded. Decoding continues from `prefix_offset`,
    before the last decoded tokens, because the text of a word may depend on the tokens before it.
    Both offsets count prompt and output.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._is_byte_level = tokenizer.is_byte_level
        self._token = cache(self._token_uncached)
        # Most windows are one or two tokens long, and common pairs repeat.
        self._decode = lru_cache(maxsize=2**16)(self._decode_uncached)

    def append(self, seq: Sequence, *, skip_special_tokens: bool = True) -> None:
        """Decodes all new tokens, and appends the text that is final to `output_text`."""
        token_ids = seq.data.get_token_ids()
        read = seq.read_offset
        # One new token is decoded without context if it and the one before it are whole characters:
        # byte-level tokens decode equally in any context, and most tokens are of this kind.
        is_one = len(token_ids) == read + 1 == seq.prefix_offset + 2
        if is_one and seq.tokens is not None and self._is_byte_level:
            token = self._token(token_ids[read])
            if token.is_whole and not self._token(token_ids[read - 1]).is_open:
                seq.tokens.append(token.name)
                seq.output_text += token.plain_text if skip_special_tokens else token.text
                seq.prefix_offset, seq.read_offset = read, read + 1
                return
        if seq.tokens is None:
            self._start(seq, skip_special_tokens)
        assert seq.tokens is not None
        seq.tokens += [self._token(token_id).name for token_id in token_ids[seq.read_offset :]]
        window = tuple(token_ids[seq.prefix_offset :])
        num_read = seq.read_offset - seq.prefix_offset
        before = self._decode(window[:num_read], skip_special_tokens)
        after = self._decode(window, skip_special_tokens)
        seq.output_text += _final_text(after)[len(_final_text(before)) :]
        if not before.endswith(_REPLACEMENT):
            seq.prefix_offset = seq.read_offset
        elif num_read >= _LONGEST_WINDOW:
            seq.prefix_offset = seq.read_offset - _CONTEXT
        seq.read_offset = len(token_ids)

    def finish(self, seq: Sequence, *, skip_special_tokens: bool = True) -> None:
        """Appends the withheld character, if there is one: no token will complete it."""
        window = tuple(seq.get_token_ids()[seq.prefix_offset : seq.read_offset])
        text = self._decode(window, skip_special_tokens)
        seq.output_text += text[len(_final_text(text)) :]

    def token_text(self, token_id: int) -> str:
        """Returns the text of a single token, special or not."""
        return self._token(token_id).text

    def _start(self, seq: Sequence, skip_special_tokens: bool) -> None:
        """Sets the offsets to the end of the prompt, whose last tokens are the first context."""
        prompt_token_ids = seq.prompt_token_ids
        seq.tokens = [self._token(token_id).name for token_id in prompt_token_ids]
        seq.read_offset = len(prompt_token_ids)
        seq.prefix_offset = max(seq.read_offset - _CONTEXT, 0)
        context = tuple(prompt_token_ids[seq.prefix_offset :])
        if self._decode(context, skip_special_tokens).endswith(_REPLACEMENT):
            # A prompt may end within a character, which the output must not complete.
            seq.prefix_offset = seq.read_offset

    def _token_uncached(self, token_id: int) -> _Token:
        try:
            name = self.tokenizer.id_to_token(token_id)
        except KeyError:
            name = ""
        text, plain_text = (self._decode_uncached((token_id,), skips) for skips in (False, True))
        return _Token(name, text, plain_text, _REPLACEMENT not in text, text.endswith(_REPLACEMENT))

    def _decode_uncached(self, token_ids: tuple[int, ...], skip_special_tokens: bool) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)


def _final_text(text: str) -> str:
    """Returns `text` without a last character that later tokens may change."""
    return text.removesuffix(_REPLACEMENT)
