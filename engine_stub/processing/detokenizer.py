"""Text from tokens as they come, without ever showing half a character.

A character may take several byte-level tokens. Until its last byte is there, decoding ends in the
replacement character U+FFFD, which is therefore held back; it is let out once a later token shows
that the bytes before it are really invalid, or when the sequence ends.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

from engine_stub.processing.tokenizer import Tokenizer
from seqtop.sequence import Sequence

_REPLACEMENT = "\ufffd"
# Tokens decoded again with the new ones when the window does not start at the end of a character.
# A character has at most four bytes, so decoding is in step again after so many tokens.
_CONTEXT = 6
# A window that grows to so many tokens without meeting the end of a character is moved on.
_LONGEST_WINDOW = 16


class _Token(NamedTuple):
    """A token by itself.

    Attributes:
        name: As the vocabulary spells it; empty if it is not in there, as models may have more
            embeddings than their tokenizers have tokens.
        text: What it is decoded to.
        plain_text: Likewise, if special tokens are skipped.
    """

    name: str
    text: str
    plain_text: str


class Detokenizer:
    """Extends `Sequence.output_text` by the text of new tokens.

    Of a sequence it has read ``tokens[:read_offset]``; decoding starts at `prefix_offset`, before
    the last tokens read, for decoders to which a word's text depends on what precedes it. Both
    offsets count prompt and output.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._token = cache(self._token_uncached)
        # Windows are a token or two long, and most of them are common pairs.
        self._decode = lru_cache(maxsize=2**16)(self._decode_uncached)

    def append(self, seq: Sequence, *, skip_special_tokens: bool = True) -> None:
        """Read all tokens not read yet, and add the text that they settle to `output_text`."""
        token_ids = seq.get_token_ids()
        if self._append_whole(seq, token_ids, skip_special_tokens):
            return
        if seq.tokens is None:
            self._start(seq, skip_special_tokens)
        assert seq.tokens is not None
        seq.tokens += [self._token(token_id).name for token_id in token_ids[seq.read_offset :]]
        window = tuple(token_ids[seq.prefix_offset :])
        num_read = seq.read_offset - seq.prefix_offset
        before = self._decode(window[:num_read], skip_special_tokens)
        after = self._decode(window, skip_special_tokens)
        seq.output_text += _settled(after)[len(_settled(before)) :]
        if not before.endswith(_REPLACEMENT):
            seq.prefix_offset = seq.read_offset
        elif num_read >= _LONGEST_WINDOW:
            seq.prefix_offset = seq.read_offset - _CONTEXT
        seq.read_offset = len(token_ids)

    def finish(self, seq: Sequence, *, skip_special_tokens: bool = True) -> None:
        """Add the character that is held back, if one is: nothing will complete it."""
        window = tuple(seq.get_token_ids()[seq.prefix_offset : seq.read_offset])
        text = self._decode(window, skip_special_tokens)
        seq.output_text += text[len(_settled(text)) :]

    def token_text(self, token_id: int) -> str:
        """Text of a token by itself, special or not."""
        return self._token(token_id).text

    def _append_whole(self, seq: Sequence, token_ids: list[int], skip_special_tokens: bool) -> bool:
        """Read one token that is whole characters, after one that ends with one; else do nothing.

        Bytes are decoded alike wherever they are, and most tokens are of this kind.
        """
        read = seq.read_offset
        is_one = len(token_ids) == read + 1 == seq.prefix_offset + 2
        if not (is_one and self.tokenizer.is_byte_level and seq.tokens is not None):
            return False
        before, token = self._token(token_ids[read - 1]), self._token(token_ids[read])
        if before.text.endswith(_REPLACEMENT) or _REPLACEMENT in token.text:
            return False
        seq.tokens.append(token.name)
        seq.output_text += token.plain_text if skip_special_tokens else token.text
        seq.prefix_offset, seq.read_offset = read, read + 1
        return True

    def _start(self, seq: Sequence, skip_special_tokens: bool) -> None:
        """Begin after the prompt, whose last tokens are the first context."""
        prompt_token_ids = seq.prompt_token_ids
        seq.tokens = [self._token(token_id).name for token_id in prompt_token_ids]
        seq.read_offset = len(prompt_token_ids)
        seq.prefix_offset = max(seq.read_offset - _CONTEXT, 0)
        context = tuple(prompt_token_ids[seq.prefix_offset :])
        if self._decode(context, skip_special_tokens).endswith(_REPLACEMENT):
            # A prompt of tokens may end within a character, which is not the output's to complete.
            seq.prefix_offset = seq.read_offset

    def _token_uncached(self, token_id: int) -> _Token:
        try:
            name = self.tokenizer.id_to_token(token_id)
        except KeyError:
            name = ""
        texts = (self._decode_uncached((token_id,), skips) for skips in (False, True))
        return _Token(name, *texts)

    def _decode_uncached(self, token_ids: tuple[int, ...], skip_special_tokens: bool) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)


def _settled(text: str) -> str:
    """`text` without a last character that later tokens may yet change."""
    return text.removesuffix(_REPLACEMENT)
