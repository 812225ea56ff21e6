"""The text of requests, from their tokens; in the publisher's process, never in vLLM's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from seqtop.tokenizer_file import TokenizerError, read_tokenizer


class Texts:
    """Turns token ids to text, request by request.

    Args:
        tokenizer: A `tokenizer.json`, a folder with one, or an id on the Hugging Face hub, of
            which only what is on this machine already is looked at: vLLM has put it there.

    Raises:
        TokenizerError: there is none, or it is of another kind.
    """

    def __init__(self, tokenizer: str, revision: str | None = None) -> None:
        self._tokenizer: Any = read_tokenizer(_local_path(tokenizer, revision))
        from tokenizers.decoders import DecodeStream

        self._new_stream: Any = DecodeStream
        self._streams: dict[int, Any] = {}

    def prompt(self, token_ids: list[int]) -> str:
        """The text of a whole prompt, special tokens included."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def grow(self, seq_id: int, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text that these tokens add to a sequence's; a character's last token completes it."""
        stream = self._streams.get(seq_id)
        if stream is None:
            stream = self._new_stream(skip_special_tokens=skip_special_tokens)
            self._streams[seq_id] = stream
        return "".join(stream.step(self._tokenizer, token_id) or "" for token_id in token_ids)

    def end(self, seq_id: int) -> None:
        self._streams.pop(seq_id, None)


def load(tokenizer: str | None, revision: str | None) -> Texts | None:
    """The texts of `tokenizer`; without one that can be read `None`, which stderr tells."""
    if tokenizer is None:
        return None
    try:
        return Texts(tokenizer, revision)
    except TokenizerError as error:
        print(f"seqtop: no text: {error}", file=sys.stderr)  # noqa: T201 - vLLM's log
        return None


def _local_path(tokenizer: str, revision: str | None) -> str:
    if Path(tokenizer).exists():
        return tokenizer
    try:
        from huggingface_hub import hf_hub_download

        return hf_hub_download(
            tokenizer, "tokenizer.json", revision=revision, local_files_only=True
        )
    except Exception as error:  # the libraries below it raise many kinds
        raise TokenizerError(f"the tokenizer {tokenizer!r} cannot be read: {error}") from error
