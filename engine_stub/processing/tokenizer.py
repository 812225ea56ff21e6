"""Text to token ids and back, for the tokenizer that lies beside a model's weights."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers import decoders

from engine_stub.model_executor.model_config import ModelConfig


class Tokenizer:
    """A byte-level BPE tokenizer read from a model directory.

    Whatever a prompt says is text: one that spells out ``<|end|>`` gets those letters, not the
    special token.
    """

    def __init__(self, path: Path) -> None:
        """Read ``path/tokenizer.json``; the special ids come from ``path/config.json``.

        Raises:
            FileNotFoundError: one of the files is missing.
            ValueError: ``tokenizer.json`` cannot be read.
            UnsupportedModel: see `ModelConfig.from_pretrained`.
        """
        file = path / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(f"{path} holds no tokenizer.json")
        config = ModelConfig.from_pretrained(path)
        self.bos_token_id = config.bos_token_id
        self.eos_token_ids = frozenset(config.eos_token_id)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
            # Whether special tokens are read is a switch of the whole object, not of a call.
            self._template_tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing more precise
            raise ValueError(f"{file} is not a readable tokenizer: {error}") from error
        self._tokenizer.encode_special_tokens = True
        self.vocab_size = self._tokenizer.get_vocab_size()
        # Then a token stands for the same bytes wherever it is.
        self.is_byte_level = isinstance(self._tokenizer.decoder, decoders.ByteLevel)
        self.special_token_ids = frozenset(
            token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, with the special tokens that the tokenizer puts around it."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def encode_with_special_tokens(self, text: str) -> list[int]:
        """Return the ids of `text` as it stands, special tokens where it spells them.

        For what a chat template has put together; as in transformers, a message that spells a
        special token gets one.
        """
        ids: list[int] = self._template_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; bytes that form no character become U+FFFD."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def id_to_token(self, token_id: int) -> str:
        """Return the token as the vocabulary spells it, ``Ġstory`` for " story".

        Raises:
            KeyError: there is no such id.
        """
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None:
            raise KeyError(token_id)
        return token

    def token_to_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for; a special token has the bytes of its name.

        Raises:
            KeyError: there is no such id, or the vocabulary is not byte-level.
        """
        token = self.id_to_token(token_id)
        if token_id in self.special_token_ids:
            return token.encode()
        return bytes(self._byte_of_character[character] for character in token)

    @cached_property
    def _byte_of_character(self) -> dict[str, int]:
        """The byte behind each character of a byte-level vocabulary, as GPT-2 chose them.

        Printable Latin-1 bytes stand for themselves; the others, in order, for the characters
        from U+0100 on.
        """
        printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
        others = (byte for byte in range(256) if byte not in printable)
        return {chr(byte): byte for byte in printable} | {
            chr(0x100 + index): byte for index, byte in enumerate(others)
        }
