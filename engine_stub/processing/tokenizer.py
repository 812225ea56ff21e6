"""Converts text to token ids and back, with the tokenizer in a model's directory."""

from __future__ import annotations

from pathlib import Path

from tokenizers import decoders

from engine_stub.model_executor.model_config import ModelConfig
from seqtop.text.tokenizer_file import read_tokenizer


class Tokenizer:
    """A byte-level BPE tokenizer read from a model directory.

    A prompt is plain text: one that contains ``<|end|>`` gets the tokens of these characters, not
    the special token.
    """

    def __init__(self, path: Path) -> None:
        """Reads ``path/tokenizer.json``, and the special ids from ``path/config.json``.

        Raises:
            FileNotFoundError: One of the files is missing.
            TokenizerError: ``tokenizer.json`` cannot be read.
            UnsupportedModel: See `ModelConfig.from_pretrained`.
        """
        file = path / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(f"{path} holds no tokenizer.json")
        config = ModelConfig.from_pretrained(path)
        self.bos_token_id = config.bos_token_id
        self.eos_token_ids = frozenset(config.eos_token_id)
        self._tokenizer = read_tokenizer(file)
        # The recognition of special tokens is a setting of the object, not of a call.
        self._template_tokenizer = read_tokenizer(file)
        self._tokenizer.encode_special_tokens = True
        self.vocab_size = self._tokenizer.get_vocab_size()
        # In a byte-level vocabulary, a token stands for the same bytes in any context.
        self.is_byte_level = isinstance(self._tokenizer.decoder, decoders.ByteLevel)
        # Without a normalizer, which may shorten a text, no token stands for more bytes.
        self.max_token_bytes = (
            max(len(token.encode()) for token in self._tokenizer.get_vocab())
            if self.is_byte_level and self._tokenizer.normalizer is None
            else None
        )
        self.special_token_ids = frozenset(
            token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        )

    def least_tokens(self, text: str) -> int:
        """Returns a number of tokens that `text` has at least, without tokenizing it.

        It is 0 for a tokenizer whose tokens may stand for any number of bytes.
        """
        longest = self.max_token_bytes
        return 0 if longest is None else -(-len(text.encode()) // longest)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids of `text`, with the special tokens that the tokenizer adds."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Returns the ids of `text`, with special tokens where it contains their names.

        For the output of a chat template. As in transformers, a message that contains the name of a
        special token gets that token.
        """
        ids: list[int] = self._template_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Returns the text of `ids`; bytes that form no character become U+FFFD."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def id_to_token(self, token_id: int) -> str:
        """Returns the token as the vocabulary spells it, ``Ġstory`` for " story".

        Raises:
            KeyError: There is no such id.
        """
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None:
            raise KeyError(token_id)
        return token
