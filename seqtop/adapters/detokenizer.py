"""Detokenization of requests, in the publisher's process and never in the engine's."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from seqtop.text.tokenizer_file import TokenizerError, read_tokenizer


class StreamDetokenizer:
    """Converts token ids to text, request by request.

    Args:
        tokenizer: A `tokenizer.json`, a directory with one, or an id of the Hugging Face hub.
            Nothing is downloaded: the engine has stored the files of a hub id on this machine.
        revision: The revision of a hub id; by default the main one.

    Raises:
        TokenizerError: The tokenizer does not exist or cannot be read.
    """

    def __init__(self, tokenizer: str, revision: str | None = None) -> None:
        self._tokenizer: Any = read_tokenizer(_local_path(tokenizer, revision))
        from tokenizers.decoders import DecodeStream

        self._new_stream: Any = DecodeStream
        self._streams: dict[int, Any] = {}

    def decode_prompt(self, token_ids: list[int]) -> str:
        """Returns the text of a whole prompt, including special tokens."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def decode_output(self, seq_id: int, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Returns the text that new tokens add to a sequence.

        A character of several tokens is in the text of its last one.
        """
        stream = self._streams.get(seq_id)
        if stream is None:
            stream = self._new_stream(skip_special_tokens=skip_special_tokens)
            self._streams[seq_id] = stream
        return "".join(stream.step(self._tokenizer, token_id) or "" for token_id in token_ids)

    def end(self, seq_id: int) -> None:
        """Discards the stream of a finished sequence."""
        self._streams.pop(seq_id, None)


def load_detokenizer(tokenizer: str | None, revision: str | None) -> StreamDetokenizer | None:
    """Loads a tokenizer; if it cannot be read, returns `None` after a line on stderr."""
    if tokenizer is None:
        return None
    try:
        return StreamDetokenizer(tokenizer, revision)
    except TokenizerError as error:
        with contextlib.suppress(OSError):  # of a full disk
            print(f"seqtop: no text: {error}", file=sys.stderr)  # noqa: T201 - the engine's log
        return None


def _local_path(tokenizer: str, revision: str | None) -> str:
    if Path(tokenizer).exists():
        return tokenizer
    try:
        from huggingface_hub import hf_hub_download

        return str(
            hf_hub_download(tokenizer, "tokenizer.json", revision=revision, local_files_only=True)
        )
    except Exception as error:  # the libraries below it raise many kinds
        raise TokenizerError(f"the tokenizer {tokenizer!r} cannot be read: {error}") from error
