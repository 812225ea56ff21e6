"""Text from tokens as they come, without ever showing half a character.

A character may take several byte-level tokens. Until its last byte is there, decoding ends in the
replacement character U+FFFD, which is therefore held back; it is let out once a later token shows
that the bytes before it are really invalid, or when the sequence ends.
"""

from __future__ import annotations

from functools import lru_cache

from engine_stub.tokenizer import Tokenizer
from seqtop.sequence import Sequence

_REPLACEMENT = "\ufffd"
# Tokens decoded again with the new ones when the window does not start at the end of a character.
# A character has at most four bytes, so decoding is in step again after so many tokens.
_CONTEXT = 6
# A window that grows to so many tokens without meeting the end of a character is moved on.
_LONGEST_WINDOW = 16


class Detokenizer:
    """Extends `Sequence.output_text` by the text of new tokens.

    Of a sequence it has read ``tokens[:read_offset]``; decoding starts at `prefix_offset`, before
    the last tokens read, for decoders to which a word's text depends on what precedes it. Both
    offsets count prompt and output.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        # Windows are a token or two long, and most of them are common pairs.
        self._decode = lru_cache(maxsize=2**16)(self._decode_uncached)

    def append(self, seq: Sequence, *, skip_special_tokens: bool = True) -> None:
        """Read all tokens not read yet, and add the text that they settle to `output_text`."""
        token_ids = seq.get_token_ids()
        if seq.tokens is None:
            self._start(seq, skip_special_tokens)
        assert seq.tokens is not None
        seq.tokens += map(self._token, token_ids[seq.read_offset :])
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
        return self._decode((token_id,), False)

    def _start(self, seq: Sequence, skip_special_tokens: bool) -> None:
        """Begin after the prompt, whose last tokens are the first context."""
        prompt_token_ids = seq.prompt_token_ids
        seq.tokens = list(map(self._token, prompt_token_ids))
        seq.read_offset = len(prompt_token_ids)
        seq.prefix_offset = max(seq.read_offset - _CONTEXT, 0)
        context = tuple(prompt_token_ids[seq.prefix_offset :])
        if self._decode(context, skip_special_tokens).endswith(_REPLACEMENT):
            # A prompt of tokens may end within a character, which is not the output's to complete.
            seq.prefix_offset = seq.read_offset

    def _token(self, token_id: int) -> str:
        try:
            return self.tokenizer.id_to_token(token_id)
        except KeyError:
            # Models may have more embeddings than their tokenizers have tokens.
            return ""

    def _decode_uncached(self, token_ids: tuple[int, ...], skip_special_tokens: bool) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=skip_special_tokens)


def _settled(text: str) -> str:
    """`text` without a last character that later tokens may yet change."""
    return text.removesuffix(_REPLACEMENT)
